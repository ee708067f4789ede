"""Measures drift by simulated months: `python -m benchmarks.drift --output FOLDER`.

1. Sketch all samples of each model in each condition: the light of a day, and shifts.
2. Let devices live months without a shift, and count months with a change.
3. Shift the scene after the first day: found in half an hour, or in a day?
4. Compare the loss that a device states after a thousand inferences with the labels' loss.
"""

import argparse
import json
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.drift.months import (
    LIGHTS,
    Build,
    Device,
    daily,
    draw_build,
    light_name,
    sketch_pool,
)
from benchmarks.drift.subjects import SUBJECTS, Subject
from benchmarks.tasks.task import Array
from edgepack.agent.telemetry.drift_windows import DAY_WINDOWS, IN_A_ROW, RECENT_WINDOWS

_DAYS = 30
_ALARM_POINTS = 0.05
_HARMLESS = 0.01


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A shift of a model.

    Attributes:
        shift: Its name.
        soon, in_a_day: Share of devices that saw a change within half an hour, and within a day.
        lost: Share of right answers that the shift costs, by labels.
        stated: Losses that the devices stated; None for no harm.
    """

    shift: str
    soon: float
    in_a_day: float
    lost: float
    stated: tuple[float | None, ...]

    @property
    def near(self) -> int:
        """Devices that state half to double the loss."""
        return sum(one is not None and self.lost / 2 <= one <= self.lost * 2 for one in self.stated)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a model.

    Attributes:
        model: Its name.
        features: Features of a build.
        months: Simulated months without a shift.
        false_months: Months with a change, by the light of the days.
        harmed_months: Months in which a device stated harm, by the light of the days.
        found: Results by shift.
        is_fresh: Whether nothing was developed on the model.
    """

    model: str
    features: int
    months: int
    false_months: dict[str, int]
    harmed_months: dict[str, int]
    found: tuple[Found, ...]
    is_fresh: bool


def main() -> None:
    """Measure, print, and write the page with its numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builds", type=int, default=6, help="builds of each model")
    parser.add_argument("--months", type=int, default=2, help="months of each build")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, help="folder of the page and the numbers")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.workers) as pool:
        measure = partial(_measure, builds=options.builds, months=options.months)
        rows = list(pool.map(measure, range(len(SUBJECTS))))
    page = _page(rows)
    print(page)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        numbers = json.dumps(msgspec.to_builtins(rows), indent=1)
        (options.output / "drift.json").write_text(numbers + "\n")
        (options.output / "README.md").write_text(page)


def _measure(number: int, builds: int, months: int) -> Row:
    subject = SUBJECTS[number]()
    months = months if subject.is_fresh else 0
    lights = {light_name(light): partial(_light, subject, light) for light in LIGHTS}
    conditions = lights | dict(subject.shifts)
    pools = {name: sketch_pool(subject, shift) for name, shift in conditions.items()}
    plain = [light_name(1.0)]
    false_months = {"still": 0, "dusk": 0}
    harmed_months = {"still": 0, "dusk": 0}
    found: dict[str, list[tuple[bool, bool, float | None]]] = {}
    for seed in range(builds):
        for light, listed in (("still", plain), ("dusk", list(lights))):
            build = draw_build(subject, pools, listed, seed)
            for month in range(months):
                changed, is_harmed = _live_month(
                    build, 1000 * seed + month, is_dusk=light == "dusk"
                )
                false_months[light] += changed
                harmed_months[light] += is_harmed
        build = draw_build(subject, pools, plain, seed)
        for name, result in _find(subject, build, seed).items():
            found.setdefault(name, []).append(result)
    whole = pools[plain[0]].is_right.mean()
    lost = {name: float(whole - pool.is_right.mean()) for name, pool in pools.items()}
    return Row(
        model=subject.name,
        features=len(build.features),
        months=builds * months * 2,
        false_months=false_months,
        harmed_months=harmed_months,
        found=tuple(
            Found(
                shift=name,
                soon=sum(soon for soon, _, _ in results) / builds,
                in_a_day=sum(day for _, day, _ in results) / builds,
                lost=lost.get(name, 0.0),
                stated=tuple(stated for _, _, stated in results),
            )
            for name, results in found.items()
        ),
        is_fresh=subject.is_fresh,
    )


def _light(subject: Subject, light: float, sample: Array, _rng: np.random.Generator) -> Array:
    return subject.light(sample, light)


def _live_month(build: Build, seed: int, *, is_dusk: bool) -> tuple[bool, bool]:
    device = Device(build, np.random.default_rng(seed))
    changed = is_harmed = False
    for _ in range(_DAYS):
        for condition in daily(is_dusk=is_dusk):
            changed |= device.live(condition)
            is_harmed |= device.loss is not None
    return changed, is_harmed


def _find(
    subject: Subject, build: Build, seed: int
) -> Mapping[str, tuple[bool, bool, float | None]]:
    """Return by shift: found in half an hour, found in a day, and the stated loss."""
    device = Device(build, np.random.default_rng(seed))
    for condition in daily(is_dusk=False):
        device.live(condition)
    learnt = device.windows
    cases: dict[str, tuple[str, Array | None]] = {name: (name, None) for name in subject.shifts}
    cases["classes 50:50 to 0:100"] = (light_name(1.0), np.flatnonzero(subject.kinds))
    found = {}
    for name, (condition, among) in cases.items():
        device.windows = learnt
        soon, stated = False, None
        is_changed = [False]
        for number in range(1, DAY_WINDOWS + 1):
            is_changed.append(device.live(condition, among))
            if number == IN_A_ROW:
                soon = any(is_changed)
            if number == RECENT_WINDOWS:
                stated = device.loss
            if is_changed[-1] and number >= RECENT_WINDOWS:
                break
        found[name] = (soon, any(is_changed), stated)
    return found


_HEAD = """# Drift, measured

Simulated months of devices whose windows are judged by the agent's own rule. A window has ten
scenes of ten alike inferences. Made by `make bench-drift`; [the numbers](drift.json) as JSON.
Each build draws 128 samples and spoils 16 of these. **Fresh** models were opened after the rule,
its numbers and the estimate of losses were fixed. The estimate was developed on the other models
and on one that is not shown (orientation of lines): their numbers are no evidence. Of recognizers,
only the script is measured.

| model | features | changes, still light | in dusk | stated harm, still light | in dusk |
| --- | ---: | ---: | ---: | ---: | ---: |"""

_LIMITS = """
## Limits

- **Confident errors are not visible.** A model that is wrong and sure loses no confidence, and no
  loss is stated. Compare `cells` below: strong noise costs a quarter of the right answers, and the
  confidence falls by less than a point.
- **Normal daily variation is not a change.** What the first day brought, such as dusk, is normal.
  A shift that is smaller than the first day's variation shows only in the mean of a whole day.
- A stated loss assumes that the same classes come as on the first day. If other classes come and
  the confidence falls for another reason at the same time, the stated loss is too high.
- A recognizer has no classes: its loss follows from its confidence alone.
- Samples here are drawn independently by scene. Weather is not simulated, and is a change.
"""

_SHIFTS = """
## {title}

Seen: share of devices that saw a change, within half an hour and within a day. Lost: points of
accuracy, by labels. Stated: the median of the devices; near: devices that state half to double.

| shift | seen soon | in a day | lost | stated | near | harm |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |"""


def _page(rows: list[Row]) -> str:
    lines = [_HEAD]
    for row in rows:
        half = row.months // 2
        counts = (*row.false_months.values(), *row.harmed_months.values())
        told = [f"{count} of {half}" if half else "–" for count in counts]
        lines.append(f"| {_titled(row)} | {row.features} | {' | '.join(told)} |")
    for title, of in (("Fresh models", True), ("Other models", False)):
        lines += ["", f"{title}:", "", *_summary([one for one in rows if one.is_fresh == of])]
    lines.append(_LIMITS)
    for row in rows:
        lines.append(_SHIFTS.format(title=_titled(row)))
        lines += [_line(one) for one in row.found]
    return "\n".join([*lines, ""])


def _titled(row: Row) -> str:
    return row.model[0].upper() + row.model[1:] + (" (fresh)" if row.is_fresh else "")


def _summary(rows: list[Row]) -> list[str]:
    found = [one for row in rows for one in row.found]
    large = [one for one in found if one.lost >= 2 * _ALARM_POINTS]
    some = [one for one in found if one.lost >= _ALARM_POINTS]
    harmless = [one for one in found if abs(one.lost) < _HARMLESS]
    near = sum(one.near for one in large)
    seen = sum(round(one.in_a_day * len(one.stated)) for one in large)
    return [
        f"- Losses of 10 points or more: {seen} of {_devices(large)} devices see a change within "
        "a day.",
        f"  {_stated(large)} devices state harm, {near} of them half to double the loss.",
        f"- Losses of 5 points or more: {_stated(some)} of {_devices(some)} devices state harm.",
        f"- Losses below 1 point: {_stated(harmless)} of {_devices(harmless)} devices state harm.",
    ]


def _line(found: Found) -> str:
    stated = sorted(loss for loss in found.stated if loss is not None)
    middle = f"{100 * stated[len(stated) // 2]:.1f}" if stated else "–"
    near = f"{found.near} of {len(found.stated)}" if found.lost >= _ALARM_POINTS else "–"
    cells = (
        found.shift,
        f"{found.soon:.2f}",
        f"{found.in_a_day:.2f}",
        f"{100 * found.lost:.1f}",
        middle,
        near,
        f"{len(stated)} of {len(found.stated)}",
    )
    return f"| {' | '.join(cells)} |"


def _devices(found: list[Found]) -> int:
    return sum(len(one.stated) for one in found)


def _stated(found: list[Found]) -> int:
    return sum(loss is not None for one in found for loss in one.stated)


if __name__ == "__main__":
    main()
