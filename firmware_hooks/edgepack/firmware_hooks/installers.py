"""Installers and bootloaders as tables: the commands of each step of the firmware contract.

A command is a list of words with fields in braces, which `firmware` fills in. `OPTIONS` stands for
the options in the hook's settings.

Fields: `{program}`, `{file}` (the artefact), `{previous_file}` (the artefact of the previous
firmware), `{device}`; and of a bootloader with slots: `{variable}`, `{running}` (the slot that
runs), `{slot}` (the other slot), `{back}` (the slot that `arm` left).
"""

from typing import Literal, NamedTuple

Command = tuple[str, ...]
OPTIONS = "{options}"
WRITE_IMAGE: Command = ("{write}",)
"""Stands for a copy of the artefact to the device of the other slot."""
SET_ENVIRONMENT = "{set environment}"
"""First word of variables of U-Boot's environment, `NAME=VALUE`, that change in a single write."""

WayBack = Literal["good slot", "second slot", "artefact", "installer"]
"""Prerequisite of the previous firmware's return: RAUC's mark of the running slot, a second slot in
the bootloader's environment, the previous artefact, or a check by the installer itself."""


class Bootloader(NamedTuple):
    """Row of a bootloader; each sequence of commands may be cut off anywhere.

    Attributes:
        arm: Start the new firmware next time, on trial.
        commit: End the trial.
        revert: While the new firmware runs: start the previous firmware next time.
        stay: The same while the previous firmware runs.
    """

    arm: tuple[Command, ...] = ()
    commit: tuple[Command, ...] = ()
    revert: tuple[Command, ...] = ()
    stay: tuple[Command, ...] = ()


class Installer(NamedTuple):
    """Row of an installer.

    Attributes:
        summary: The installer, for people.
        program: The program; the setting `program` names another.
        check: Verify the artefact.
        install: Write the artefact beside the running firmware.
        bootloader: Key of `BOOTLOADERS`.
        way_back: Prerequisite of the return.
        version: Print devices with their versions as JSON; () reads the version file.
        busy: Text of the error that means "try again later".
        success: Text that means success whatever the exit code.
    """

    summary: str
    program: str
    check: tuple[Command, ...]
    install: tuple[Command, ...]
    bootloader: str
    way_back: WayBack
    version: Command = ()
    busy: str = "\0"
    success: str = "\0"


_BACK_BY_COUNTERS: tuple[Command, ...] = (
    (SET_ENVIRONMENT, "{variable}={back}", "upgrade_available=0", "bootcount=0"),
)

BOOTLOADERS: dict[str, Bootloader] = {
    "rauc": Bootloader(
        commit=(("{program}", "status", "mark-good", "booted"),),
        revert=(
            ("{program}", "status", "mark-active", "other"),
            ("{program}", "status", "mark-bad", "booted"),
        ),
        stay=(
            ("{program}", "status", "mark-active", "booted"),
            ("{program}", "status", "mark-bad", "other"),
        ),
    ),
    "uboot": Bootloader(
        arm=(
            (
                *(SET_ENVIRONMENT, "{variable}={slot}", "upgrade_available=1", "bootcount=0"),
                "edgepack_back={running}",
            ),
        ),
        commit=((SET_ENVIRONMENT, "upgrade_available=0", "bootcount=0"),),
        revert=_BACK_BY_COUNTERS,
        stay=_BACK_BY_COUNTERS,
    ),
    "mender": Bootloader(
        commit=(("{program}", "commit"),),
        revert=(("{program}", "rollback"),),
        stay=(("{program}", "rollback"),),
    ),
    # The firmware of a component has no trial and no second slot.
    "none": Bootloader(
        revert=(
            (
                *("{program}", "install", "{previous_file}", "{device}", "--assume-yes"),
                *("--allow-older", "--allow-reinstall", "--no-reboot-check"),
            ),
        ),
    ),
}

INSTALLERS: dict[str, Installer] = {
    "rauc": Installer(
        summary="RAUC, with the bootloader in its settings",
        program="rauc",
        check=(("{program}", "info", OPTIONS, "{file}"),),
        install=(("{program}", "install", OPTIONS, "{file}"),),
        bootloader="rauc",
        way_back="good slot",
        busy="Already processing a different method",
    ),
    "swupdate": Installer(
        summary="SWUpdate, with U-Boot's counters",
        program="swupdate",
        check=(("{program}", OPTIONS, "--select", "stable,{slot}", "--check", "-i", "{file}"),),
        install=(("{program}", OPTIONS, "--select", "stable,{slot}", "-i", "{file}"),),
        bootloader="uboot",
        way_back="second slot",
        # SWUpdate 2022.12 may exit with 1 after a success, on a busy machine.
        success="SWUPDATE successful !",
    ),
    "raw": Installer(
        summary="an image of a partition, with U-Boot's counters",
        program="",
        check=(),
        install=(WRITE_IMAGE,),
        bootloader="uboot",
        way_back="second slot",
    ),
    "mender": Installer(
        summary="the Mender client without a server",
        program="mender",
        check=(),
        install=(("{program}", OPTIONS, "install", "{file}"),),
        bootloader="mender",
        way_back="installer",
        success="There is nothing to commit",  # Committed or taken back before.
    ),
    "fwupd": Installer(
        summary="fwupd, for the firmware of a component",
        program="fwupdmgr",
        check=(("{program}", "get-details", "{file}", "--json"),),
        install=(
            (
                *("{program}", "install", "{file}", "{device}", "--assume-yes"),
                *("--allow-reinstall", "--no-reboot-check", OPTIONS),
            ),
        ),
        bootloader="none",
        way_back="artefact",
        version=("{program}", "get-devices", "--json"),
    ),
}
