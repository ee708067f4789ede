"""Hook: mark the running system good in RAUC, after the commit of a model.

    python -P -m edgepack.firmware_hooks.rauc_mark_good --rauc /usr/bin/rauc

    python -P -m edgepack.firmware_hooks.rauc_mark_good

For devices with a bootloader that falls back to the other slot unless this slot is marked good: a
model that passed probe and soak here is a proof.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from edgepack.firmware_hooks.answer import (
    GO,
    REFUSE,
    Answer,
    CommandError,
    HookParser,
    answer_with,
    last_words,
    run_command,
)


def parser() -> HookParser:
    """Return the hook's settings."""
    made = HookParser("rauc_mark_good", __doc__)
    made.add_argument("--rauc", default="rauc", help="default: rauc")
    made.add_argument("--timeout-s", type=float, default=20.0, help="of each call; default: 20")
    return made


def decide(settings: argparse.Namespace) -> Answer:
    """Mark the booted slot, and ask RAUC for the mark."""
    try:
        marked = run_command(
            [settings.rauc, "status", "mark-good", "booted"], timeout_s=settings.timeout_s
        )
        if marked.returncode != 0:
            return Answer(REFUSE, f"RAUC did not mark the slot good: {last_words(marked)}")
        status = run_command(
            [settings.rauc, "status", "--output-format=json"], timeout_s=settings.timeout_s
        )
    except CommandError as error:
        return Answer(REFUSE, f"RAUC could not be asked: {error}")
    if status.returncode != 0:
        return Answer(REFUSE, f"RAUC did not tell its status: {last_words(status)}")
    try:
        booted = _booted_slots(status.stdout)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Answer(REFUSE, f"RAUC's status is not what was expected: {status.stdout[:200]!r}")
    if not booted:
        return Answer(REFUSE, "RAUC names no slot as booted")
    for name, boot_status in booted.items():
        if boot_status != "good":
            return Answer(REFUSE, f"RAUC says that booted slot {name} is {boot_status}")
    return Answer(GO, f"RAUC says that booted slot {', '.join(booted)} is good")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the hook."""
    return answer_with(parser(), decide, arguments)


def _booted_slots(status: str) -> dict[str, str]:
    """Return boot status by name of each booted slot; `slots` is a list of one-key objects."""
    return {
        name: str(slot["boot_status"])
        for entry in json.loads(status)["slots"]
        for name, slot in entry.items()
        if slot["state"] == "booted"
    }


if __name__ == "__main__":
    sys.exit(main())
