"""Changes that devices measured between releases, corrected for concurrent controls.

A device's change is its typical value after the switch less that of the hour before the switch.
Controls are devices of the same rollout and hardware class that still run their previous release:
the mean change of the controls in the same window is subtracted. So a hot day, or an update of
something else, is not attributed to the release.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgepack.decoding import json_decoder
from edgepack.fleet.database.measurements import LOOKS, Sample, lasts
from edgepack.fleet.database.measures import (
    PAIR_BEFORE,
    ReleaseMeasurements,
    Value,
    subtract_optional,
    typical,
)
from edgepack.fleet.database.schema import (
    AssignmentRow,
    DeviceModelRow,
    MeasurementRow,
    NoiseRow,
    ReleaseRow,
    RolloutRow,
)
from edgepack.fleet.documents.gates import BY_NAME, TIMED

MOST_DEVICES = 300
"""Devices of a hardware class that a look compares, the first waves first."""
MOST_CONTROLS = 100
"""Controls of a hardware class; more would hardly lower the error of their mean."""
APART = 4
"""Multiple of the hour before a switch: switches so far apart have independent controls' errors."""
NOISE_WEIGHT = 30
"""Pairs that the assumed noise counts for."""
_TOLD = json_decoder(ReleaseMeasurements)
_MEASURED = json_decoder(dict[str, Sample])

Measures = tuple[float | None, ...]
"""By gate of `TIMED`."""


class Changes(NamedTuple):
    """Changes of a gate over the devices of a hardware class.

    Attributes:
        numbers: Change of each device, less the mean change of its controls.
        before: Measurement of each device before its switch.
        unbased: Further devices with a measurement now, but without an earlier measurement.
        controls: Least number of controls behind a device's number; None for probes and shares,
            which need none.
        common: Share of the controls' variance that the mean over devices keeps; see
            `common_share`.
    """

    numbers: tuple[float, ...] = ()
    before: tuple[float, ...] = ()
    unbased: int = 0
    controls: int | None = None
    common: float = 1.0


class _Told(NamedTuple):
    """A device's change, its measurement before, its controls, and the time of its switch."""

    number: float
    before: float
    controls: int
    switch: float


class _Timeline(NamedTuple):
    """Values of a device on both releases, and its switch; seconds since the epoch."""

    values: Sequence[Value]
    switched_at: float
    until: float


def changes_over_time(
    session: Session, rollout: int, hardware_class: str, *, model: str, look_s: float
) -> dict[str, Changes]:
    """Return the changes of the gates in `TIMED`, by gate.

    Args:
        session: The transaction.
        rollout: Number of the rollout.
        hardware_class: Class of the devices.
        model: Name of the rollout's model.
        look_s: Time of the first look; the time before the switch is 6 times as long.
    """
    switched = _switched(session, rollout, hardware_class, look_s)
    controls = _controls(session, rollout, hardware_class, model)
    found: dict[str, list[_Told]] = {name: [] for name in TIMED}
    unbased = dict.fromkeys(TIMED, 0)

    @lru_cache(maxsize=64)
    def shared(switched_at: float, until: float) -> tuple[tuple[float, int], ...]:
        pairs = [_pair(values, switched_at, until, look_s, look_s / 2)[1] for values in controls]
        return tuple(_mean_of(column) for column in zip(*pairs, strict=True)) or ((0.0, 0),) * len(
            TIMED
        )

    step_s, shared_s = look_s / 2, look_s / 8
    for one in switched:
        before, changed, now = _pair(one.values, one.switched_at, one.until, look_s)
        # Devices that switched within the same minute share the numbers of their controls.
        switch, until = (round(at / shared_s) * shared_s for at in (one.switched_at, one.until))
        common = shared(switch, until)
        for place, name in enumerate(TIMED):
            start, change = before[place], changed[place]
            if start is not None and change is not None:
                mean, count = common[place]
                found[name].append(_Told(change - mean, start, count, switch))
            elif now[place] is not None:
                unbased[name] += 1
    apart_s = APART * PAIR_BEFORE * step_s
    return {name: _changes_of(told, unbased[name], apart_s) for name, told in found.items()}


def _changes_of(told: Sequence[_Told], unbased: int, apart_s: float) -> Changes:
    """Return changes of a gate; if some devices have controls, devices without controls are left
    out.
    """
    has_controls = any(one.controls for one in told)
    kept = [one for one in told if one.controls or not has_controls]
    return Changes(
        tuple(one.number for one in kept),
        tuple(one.before for one in kept),
        unbased + len(told) - len(kept),
        min((one.controls for one in kept), default=0),
        common_share([one.switch for one in kept], apart_s),
    )


def common_share(switches: Sequence[float], apart: float) -> float:
    """Return the share of the controls' variance that the mean over devices keeps, 0…1.

    Each device is corrected by the controls around its own switch. Devices that switched together
    have the controls' error in common; devices of waves far apart have errors that average out.

    Args:
        switches: Time of each device's switch.
        apart: Time between switches from which on errors are independent.
    """
    counts = Counter(switches)
    pairs = (
        many * more * max(0.0, 1 - abs(one - other) / apart)
        for one, many in counts.items()
        for other, more in counts.items()
    )
    return math.fsum(pairs) / max(1, len(switches)) ** 2


def changes_at_once(session: Session, rollout: int, hardware_class: str) -> dict[str, Changes]:
    """Return the changes of the other gates, which a device measures as a whole."""
    query = select(MeasurementRow.measured).where(
        MeasurementRow.rollout == rollout,
        MeasurementRow.hardware_class == hardware_class,
        MeasurementRow.rollout != 0,
    )
    query = query.order_by(MeasurementRow.wave, MeasurementRow.device).limit(MOST_DEVICES)
    found: dict[str, list[Sample]] = {}
    for text in session.scalars(query):
        for name, sample in _MEASURED.decode(text).items():
            found.setdefault(name, []).append(sample)
    changes = {}
    for name, samples in found.items():
        known = [(one.value - one.before, one.before) for one in samples if one.before is not None]
        changes[name] = Changes(
            tuple(change for change, _ in known),
            tuple(before for _, before in known),
            len(samples) - len(known),
        )
    return changes


def noise_of(session: Session, model: str, hardware_class: str) -> dict[str, float]:
    """Return the noise by gate: the fleet's pairs A/A, and the assumed noise as 30 more pairs."""
    row = NoiseRow
    query = (
        select(row.gate, func.sum(row.pairs), func.sum(row.squares))
        .join(ReleaseRow, ReleaseRow.digest == row.digest)
        .where(ReleaseRow.name == model, row.hardware_class == hardware_class)
        .group_by(row.gate)
    )
    noise = {name: gate.noise for name, gate in BY_NAME.items()}
    for gate, pairs, squares in session.execute(query):
        variance = (NOISE_WEIGHT * noise[gate] ** 2 + squares) / (NOISE_WEIGHT + pairs)
        noise[gate] = math.sqrt(variance)
    return noise


def _switched(
    session: Session, rollout: int, hardware_class: str, look_s: float
) -> list[_Timeline]:
    query = select(MeasurementRow.device, MeasurementRow.before, MeasurementRow.told).where(
        MeasurementRow.rollout == rollout,
        MeasurementRow.hardware_class == hardware_class,
        MeasurementRow.rollout != 0,
    )
    query = query.order_by(MeasurementRow.wave, MeasurementRow.device).limit(MOST_DEVICES)
    after = {
        (device, before): _TOLD.decode(told) for device, before, told in session.execute(query)
    }
    old = select(MeasurementRow.device, MeasurementRow.digest, MeasurementRow.told).where(
        MeasurementRow.device.in_([device for device, _ in after]),
        MeasurementRow.digest.in_({digest for _, digest in after if digest}),
    )
    before = {
        (device, digest): _TOLD.decode(told).values
        for device, digest, told in session.execute(old)
        if (device, digest) in after
    }
    return [
        _Timeline(
            # A device that went back measures the previous release after its first switch, too.
            (*(one for one in before.get(key, ()) if one.middle < told.began), *values),
            told.began,
            min(values[-1].end, told.began + LOOKS[-1] * look_s),
        )
        for key, told in after.items()
        if (values := told.values)
    ]


def _controls(
    session: Session, rollout: int, hardware_class: str, model: str
) -> list[Sequence[Value]]:
    """Return the values of devices that have not switched, on the release that serves there."""
    query = (
        select(MeasurementRow.told)
        .join(AssignmentRow, AssignmentRow.device == MeasurementRow.device)
        .join(RolloutRow, RolloutRow.number == AssignmentRow.rollout)
        .join(
            DeviceModelRow,
            (DeviceModelRow.device == MeasurementRow.device)
            & (DeviceModelRow.digest == MeasurementRow.digest),
        )
        .where(
            AssignmentRow.rollout == rollout,
            AssignmentRow.state.in_(("WAITING", "OFFERED", "WORKING")),
            AssignmentRow.hardware_class == hardware_class,
            DeviceModelRow.name == model,
            MeasurementRow.digest != RolloutRow.digest,
        )
        .order_by(AssignmentRow.wave.desc(), AssignmentRow.device)
        .limit(MOST_CONTROLS)
    )
    return [_TOLD.decode(told).values for told in session.scalars(query)]


def _pair(
    values: Iterable[Value],
    switched_at: float,
    until: float,
    look_s: float,
    least_s: float | None = None,
) -> tuple[Measures, Measures, Measures]:
    """Return typical values before the switch, their change, and typical values after the switch.

    Too short a time before or after gives None for each gate, and so do values that end early: the
    device is a control that switched meanwhile.

    Args:
        values: Values of a device, the newest last.
        switched_at: Time of the switch, seconds since the epoch.
        until: End of the values after the switch.
        look_s: Time of the first look, and the least time of the values before the switch.
        least_s: Least time of the values after the switch; None for `look_s`. Values of a control
            do not begin with the switch of another device: in the time of a look, a control has a
            value less.
    """
    since = switched_at - PAIR_BEFORE * look_s / 2
    before, after = [], []
    for one in values:
        if since <= one.middle < switched_at:
            before.append(one)
        elif switched_at <= one.middle <= until:
            after.append(one)
    if after and after[-1].end < until - look_s:
        after = []
    start, now = (
        typical(part if lasts(sum(one.end - one.start for one in part), least) else ())
        for part, least in ((before, look_s), (after, look_s if least_s is None else least_s))
    )
    return start, tuple(map(subtract_optional, now, start)), now


def _mean_of(changes: Iterable[float | None]) -> tuple[float, int]:
    """Return the mean of known changes, and their number."""
    known = [change for change in changes if change is not None]
    return (math.fsum(known) / len(known) if known else 0.0), len(known)
