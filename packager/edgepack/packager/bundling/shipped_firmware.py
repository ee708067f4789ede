"""Firmware artefacts (`INSTALLER[/BOARD]:VERSION=FILE`) and firmware hooks that go into a bundle,
checked before work begins.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgepack.agent.hooks.files import find_hooks
from edgepack.agent.hooks.runner import STAGES, WHENS, check_hook_folder
from edgepack.bundle.chunks import entry
from edgepack.bundle.manifest import FIRMWARE_FOLDER, FileEntry, Firmware
from edgepack.decoding import convert_value
from edgepack.errors import BuildError

_FORM = re.compile(
    r"(?P<installer>[^/:]+)(/(?P<compatible>[^:]+))?:(?P<version>[^=]+)=(?P<path>.+)"
)


_SHOWN = 3


class ShippedFirmware(msgspec.Struct, frozen=True, kw_only=True):
    """Artefact to ship.

    Attributes:
        firmware: Its facts in the manifest.
        file: The artefact on this host.
        boundaries: Bytes at which its parts begin, which releases may share.
    """

    firmware: Firmware
    file: Path
    boundaries: tuple[int, ...] = ()


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
    return tuple(entry(folder, one.firmware.file, one.boundaries) for one in shipped)


def check_shipped_hooks(folder: Path) -> None:
    """Reject a folder without hooks: the whole folder would be shipped, and nothing would run.

    Args:
        folder: Value of `--hooks`.

    Raises:
        BuildError: The path is not a folder, or holds no hook.
        DeviceError: The folder holds a stage that does not exist, or a hook that cannot run.
    """
    if not folder.is_dir():
        raise BuildError(
            "the hook folder does not exist",
            found_in=str(folder),
            remedy="make it, with a folder for each stage that has hooks, or leave out --hooks",
        )
    check_hook_folder(folder)
    stages = frozenset(f"{stage}.{when}.d" for stage in STAGES for when in WHENS)
    if not any(find_hooks(folder, stage, known_names=stages) for stage in sorted(stages)):
        raise BuildError(
            f"the hook folder holds no hook, in none of {', '.join(sorted(stages)[:_SHOWN])} …",
            found_in=str(folder),
            remedy="name the folder that holds the folders of the stages",
        )
