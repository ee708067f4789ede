"""Hook: wait while the device is hot.

    python -P -m edgepack.firmware_hooks.thermal_guard --limit-c 80

A hot device is throttled: its probe would choose by the heat, and an update would add heat. Above
the limit the hook returns a retry.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from edgepack.firmware_hooks.answer import GO, REFUSE, RETRY, Answer, HookParser, answer_with


def parser() -> HookParser:
    """Return the hook's settings."""
    made = HookParser("thermal_guard", __doc__)
    made.add_argument("--limit-c", type=float, required=True, help="highest temperature, °C")
    made.add_argument(
        "--zone", help="only zones of this type, as in SYSFS/class/thermal/thermal_zone*/type"
    )
    made.add_argument(
        "--without-sensors",
        choices=("go", "refuse"),
        default="refuse",
        help="answer if no sensor can be read; default: refuse",
    )
    made.add_argument("--sysfs", type=Path, default=Path("/sys"), help="default: /sys")
    return made


def decide(settings: argparse.Namespace) -> Answer:
    """Compare the hottest zone with the limit."""
    readings = sorted(_read_zones(settings.sysfs / "class/thermal", settings.zone))
    if not readings:
        code = GO if settings.without_sensors == "go" else REFUSE
        wanted = f" of type {settings.zone!r}" if settings.zone else ""
        return Answer(code, f"no thermal zone{wanted} could be read in {settings.sysfs}")
    hottest_c, zone = readings[-1]
    if hottest_c > settings.limit_c:
        return Answer(RETRY, f"{zone} has {hottest_c:.1f} °C, above {settings.limit_c:g} °C")
    return Answer(
        GO,
        f"hottest of {len(readings)} zones is {zone} with {hottest_c:.1f} °C, "
        f"not above {settings.limit_c:g} °C",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the hook."""
    return answer_with(parser(), decide, arguments)


def _read_zones(folder: Path, wanted: str | None) -> Iterator[tuple[float, str]]:
    """Yield (temperature in °C, "zone (type)") of every zone with a readable sensor."""
    for zone in folder.glob("thermal_zone*"):
        try:
            kind = (zone / "type").read_text().strip()
            millidegrees = int((zone / "temp").read_text())
        except (OSError, ValueError):
            continue  # a sensor that is powered down answers EAGAIN or EINVAL
        if wanted in (None, kind):
            yield millidegrees / 1000, f"{zone.name} ({kind})"


if __name__ == "__main__":
    sys.exit(main())
