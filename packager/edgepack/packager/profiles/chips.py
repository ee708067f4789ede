"""Qualcomm chips that a model can be compiled for ahead of time, as data (`chips.toml`)."""

from importlib import resources

import msgspec

from edgepack.decoding import decode_toml
from edgepack.errors import BuildError


class Chip(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chip of a provider.

    Attributes:
        htp_arch: Version of its Hexagon processor, `68` for v68.
        soc_model: The SDK's number of the chip.
        soc: Its name in the device's kernel.
        known_as: Common name.
    """

    htp_arch: str
    soc_model: str
    soc: str
    known_as: str


_FILE = resources.files("edgepack.packager.profiles") / "chips.toml"
CHIPS = decode_toml(_FILE.read_bytes(), dict[str, tuple[Chip, ...]])["chips"]

ARCH_OPTION_TAKES = ("68", "69", "73", "75", "81")
"""What the provider option `htp_arch` takes (onnxruntime-qnn 2.7); v79 goes by `soc_model`."""


def find_chip(*, soc_model: str = "", htp_arch: str = "") -> Chip:
    """Return the chip of that number, or the first of that architecture.

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
