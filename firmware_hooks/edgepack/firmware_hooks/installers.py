"""Installers and bootloaders as tables: the commands of each step of the firmware contract.

A command is a list of words with fields in braces, which `firmware` fills in: `{program}` and
`{file}`. `OPTIONS` stands for the options in the hook's settings.
"""

from typing import Literal, NamedTuple

Command = tuple[str, ...]
OPTIONS = "{options}"


class Bootloader(NamedTuple):
    """Row of a bootloader.

    Attributes:
        arm: Start the new firmware next time, on trial.
        commit: End the trial.
        revert: From the new firmware: start the previous firmware next time.
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
        way_back: Prerequisite of the return: the running slot is marked good, or nothing that the
            hook can check.
        busy: Text of the error that means "try again later".
        idle: Text of the error that means "nothing to undo".
    """

    summary: str
    program: str
    check: tuple[Command, ...]
    install: tuple[Command, ...]
    bootloader: str
    way_back: Literal["good slot", ""] = ""
    busy: str = "\0"
    idle: str = "\0"


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
}

INSTALLERS: dict[str, Installer] = {
    "rauc": Installer(
        summary="RAUC, with the bootloader of its settings",
        program="rauc",
        check=(("{program}", "info", OPTIONS, "{file}"),),
        install=(("{program}", "install", OPTIONS, "{file}"),),
        bootloader="rauc",
        way_back="good slot",
        busy="Already processing a different method",
    ),
}
