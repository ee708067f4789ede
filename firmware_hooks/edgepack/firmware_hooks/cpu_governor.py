"""Hook: set the CPU's frequency governor for the probe, and restore the old governor afterwards.

    python -P -m edgepack.firmware_hooks.cpu_governor --set performance
    python -P -m edgepack.firmware_hooks.cpu_governor --restore

A probe under a sleepy governor measures the governor. The old governor is kept in a file below
/run, which is empty after a reboot, like the kernel's own setting.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from edgepack.firmware_hooks.answer import GO, REFUSE, Answer, HookParser, answer_with


def parser() -> HookParser:
    """Return the hook's settings."""
    made = HookParser("cpu_governor", __doc__)
    action = made.add_mutually_exclusive_group(required=True)
    action.add_argument("--set", metavar="GOVERNOR", help="governor to set, e.g. performance")
    action.add_argument("--restore", action="store_true", help="restore the previous governor")
    made.add_argument(
        "--without-cpufreq",
        choices=("go", "refuse"),
        default="go",
        help="answer if the kernel has no frequency scaling; default: go, with a note",
    )
    made.add_argument("--sysfs", type=Path, default=Path("/sys"), help="default: /sys")
    made.add_argument(
        "--kept",
        type=Path,
        default=Path("/run/edgepack/cpu_governor.json"),
        help="file for the governors that were there before",
    )
    return made


def decide(settings: argparse.Namespace) -> Answer:
    """Set or restore the governor, and read the kernel's setting back."""
    files = sorted((settings.sysfs / "devices/system/cpu/cpufreq").glob("policy*/scaling_governor"))
    if not files:
        code = GO if settings.without_cpufreq == "go" else REFUSE
        return Answer(code, "this kernel has no CPU frequency scaling, so no governor to set")
    try:
        if settings.restore:
            return _restore(settings.kept)
        return _set(files, settings.set, settings.kept)
    except (OSError, ValueError) as error:
        return Answer(REFUSE, f"the governor could not be changed: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the hook."""
    return answer_with(parser(), decide, arguments)


def _set(files: list[Path], governor: str, kept: Path) -> Answer:
    for file in files:
        offered = file.with_name("scaling_available_governors").read_text().split()
        if governor not in offered:
            return Answer(
                REFUSE,
                f"{file.parent.name} has no governor {governor!r}; it has {', '.join(offered)}",
            )
    before = {str(file): file.read_text().strip() for file in files}
    if not kept.exists():  # an update that was cut off has kept the true ones already
        kept.parent.mkdir(parents=True, exist_ok=True)
        temporary = kept.with_suffix(".new")
        temporary.write_text(json.dumps(before))
        temporary.replace(kept)
    if answer := _write(dict.fromkeys(before, governor)):
        return answer
    was = ", ".join(sorted(set(before.values())))
    return Answer(GO, f"governor of {len(files)} CPU policies is {governor}; it was {was}")


def _restore(kept: Path) -> Answer:
    if not kept.exists():
        return Answer(GO, "no governor was changed, so there is none to restore")
    before = json.loads(kept.read_text())
    if answer := _write(before):
        return answer
    kept.unlink()
    governors = ", ".join(sorted(set(before.values())))
    return Answer(GO, f"governor of {len(before)} CPU policies is {governors} again")


def _write(governors: dict[str, str]) -> Answer | None:
    for name, governor in governors.items():
        Path(name).write_text(governor)
        now = Path(name).read_text().strip()
        if now != governor:
            return Answer(REFUSE, f"{name} was set to {governor} and says {now}")
    return None


if __name__ == "__main__":
    sys.exit(main())
