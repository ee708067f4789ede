"""Firmware artefacts that go into a bundle: `INSTALLER[/BOARD]:VERSION=FILE`."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgepack.bundle.chunks import entry
from edgepack.bundle.manifest import FIRMWARE_FOLDER, FileEntry, Firmware
from edgepack.decoding import convert_value
from edgepack.errors import BuildError

_FORM = re.compile(
    r"(?P<installer>[^/:]+)(/(?P<compatible>[^:]+))?:(?P<version>[^=]+)=(?P<path>.+)"
)


class ShippedFirmware(msgspec.Struct, frozen=True, kw_only=True):
    """Artefact to ship.

    Attributes:
        firmware: Its facts in the manifest.
        file: The artefact on this host.
    """

    firmware: Firmware
    file: Path


def parse_firmware(text: str) -> ShippedFirmware:
    """Return the artefact that an option or a setting names.

    Args:
        text: `INSTALLER[/BOARD]:VERSION=FILE`, e.g. `rauc/imx8:2.4.0=camera-2.4.0.raucb`.

    Raises:
        BuildError: The text has another form.
    """
    found = _FORM.fullmatch(text)
    named = found.groupdict(default="") if found else {}
    path = Path(named.pop("path", ""))
    try:
        firmware = convert_value(named | {"file": f"{FIRMWARE_FOLDER}/{path.name}"}, Firmware)
        return ShippedFirmware(firmware=firmware, file=path)
    except msgspec.ValidationError as error:
        raise BuildError(
            f"{text!a:.200} names no firmware: {error}",
            found_in="--firmware",
            remedy="--firmware INSTALLER[/BOARD]:VERSION=FILE, e.g. rauc:2.4.0=camera.raucb",
        ) from error


def check_firmware(shipped: Sequence[ShippedFirmware]) -> None:
    """Reject artefacts that cannot be shipped, before work begins.

    Raises:
        BuildError: A file is missing or empty, or two artefacts are for one kind of device.
    """
    kinds, names = set(), set()
    for one in shipped:
        if not one.file.is_file() or one.file.stat().st_size == 0:
            raise BuildError("the firmware is missing or empty", found_in=str(one.file))
        kind = one.firmware.kind
        if kind in kinds or one.firmware.file in names:
            raise BuildError(
                f"two firmware artefacts are for {kind!r}, or have the same file name",
                found_in=str(one.file),
                remedy="name one artefact for each kind of board",
            )
        kinds.add(kind)
        names.add(one.firmware.file)


def copy_firmware(folder: Path, shipped: Sequence[ShippedFirmware]) -> tuple[FileEntry, ...]:
    """Copy the artefacts into a bundle's folder and return their entries.

    Raises:
        OSError: The disk is full, or a file cannot be read.
    """
    for one in shipped:
        target = folder / one.firmware.file
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(one.file, target)
    return tuple(entry(folder, one.firmware.file) for one in shipped)
