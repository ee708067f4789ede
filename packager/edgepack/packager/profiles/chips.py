"""Qualcomm chips that a model can be compiled for ahead of time, as data.

The numbers are the SDK's own `soc_model`; each row was compiled for with QNN SDK 2.51 and the
chip's name read back from the binary (`soc_type=SM8350;arch=68`). A wrong architecture only
makes QNN warn, and the context then dies on the device, so what is in no row is refused.
"""

import msgspec

from edgepack.errors import BuildError


class Chip(msgspec.Struct, frozen=True, kw_only=True):
    """One chip.

    Attributes:
        htp_arch: Version of its Hexagon processor, `68` for v68.
        soc_model: The SDK's number of the chip.
        soc: Its name as the device's kernel tells it.
        known_as: What people call it.
    """

    htp_arch: str
    soc_model: str
    soc: str
    known_as: str


CHIPS = (
    Chip(htp_arch="68", soc_model="30", soc="SM8350", known_as="Snapdragon 888"),
    Chip(htp_arch="68", soc_model="35", soc="SM7325", known_as="Snapdragon 778G"),
    Chip(htp_arch="68", soc_model="93", soc="QCS6490", known_as="QCS6490"),
    Chip(htp_arch="69", soc_model="36", soc="SM8450", known_as="Snapdragon 8 Gen 1"),
    Chip(htp_arch="73", soc_model="43", soc="SM8550", known_as="Snapdragon 8 Gen 2"),
    Chip(htp_arch="73", soc_model="60", soc="SC8380XP", known_as="Snapdragon X Elite"),
    Chip(htp_arch="73", soc_model="66", soc="QCS8550", known_as="QCS8550"),
    Chip(htp_arch="73", soc_model="77", soc="QCS9100", known_as="QCS9100"),
    Chip(htp_arch="75", soc_model="57", soc="SM8650", known_as="Snapdragon 8 Gen 3"),
    Chip(htp_arch="79", soc_model="69", soc="SM8750", known_as="Snapdragon 8 Elite"),
    Chip(htp_arch="81", soc_model="87", soc="SM8850", known_as="Snapdragon 8 Elite Gen 5"),
)

ARCH_OPTION_TAKES = ("68", "69", "73", "75", "81")
"""What the provider option `htp_arch` takes (onnxruntime-qnn 2.7); v79 goes by `soc_model`."""


def find_chip(*, soc_model: str = "", htp_arch: str = "") -> Chip:
    """The chip of that number, or the first of that architecture.

    Raises:
        BuildError: There is none, or number and architecture contradict each other.
    """
    for chip in CHIPS:
        if soc_model and chip.soc_model != soc_model:
            continue
        if htp_arch and chip.htp_arch != htp_arch.removeprefix("v"):
            continue
        if soc_model or htp_arch:
            return chip
    asked = " and ".join(
        f"{name} {value!r}"
        for name, value in (("soc_model", soc_model), ("htp_arch", htp_arch))
        if value
    )
    table = ", ".join(f"v{chip.htp_arch} {chip.soc_model} ({chip.known_as})" for chip in CHIPS)
    raise BuildError(
        f"no chip is known with {asked}" if asked else "no chip to compile for is named",
        found_in="[compile]",
        remedy=f"one of: {table}",
    )
