"""Results of `make bench-gates`, and their page."""

from collections.abc import Mapping, Sequence

import msgspec


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts of one kind.

    Attributes:
        title: Kind of the rollouts.
        rollouts: Number of rollouts.
        stopped_by: Share of rollouts that were stopped, by devices with the release.
    """

    title: str
    rollouts: int
    stopped_by: dict[str, float]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All that `make bench-gates` measures.

    Attributes:
        curves: Rollouts with the gate `p95`.
        shares: Rollouts with gates that count shares.
        whole_rollouts: Rollouts at the limit of all gates, on three hardware classes.
        whole_stopped: Stopped rollouts of these, by gate.
        harder_rollouts, harder_stopped: The same with effects that differ by twice the assumed
            value, and weather that changes by day.
        noise_by_minutes: Standard deviation of a device's number without a change.
        finds: Least ratio that 9 of 10 rollouts find, by controls and devices.
    """

    curves: tuple[Curve, ...]
    shares: tuple[Curve, ...]
    whole_rollouts: int
    whole_stopped: dict[str, int]
    harder_rollouts: int
    harder_stopped: dict[str, int]
    noise_by_minutes: dict[str, float]
    finds: dict[str, dict[str, float]]


HEAD = """# Operating curves of gates

Written by `make bench-gates` from simulated rollouts ([`gates.json`](gates.json)). The simulation
evaluates its devices with the code of the [gates](../../how-to/gates.md).

**The world is assumed, not measured.** A device measures a value every five minutes. Its logarithm
has noise of .06 that is correlated over 50 minutes, a burst of .1 to .7 in 5 % of values, a day of
its own (up to .06), and a day that all devices share (.05). The release changes devices by its
effect, which differs between devices by .04, and by .3 between the 5 % odd devices. Waves reach 3,
6, 12, 25 and 50 devices, six hours each; 10 devices are held back. The error probability is shared
by 9 gates (`p95` counts 1.5 times), 3 hardware classes, and the looks of 5 waves: half of it by the
ends of waves.

## Whole rollouts at the limit

A release exactly at the limit of `p95`, `p99`, `memory`, `temperature`, `errors`, `shadow` and
`fallbacks`, on three hardware classes of 60 devices. The promise is 2.5 %. The gates other than
`p95` that compare times have the same world, scaled by the noise and by the effects that each gate
assumes.

"""
_HARDER = """

With effects that differ by twice what each gate assumes (`p95` by .10), and weather that changes by
day (.1):
"""
_P95 = """

## Gate `p95` alone

Share of rollouts that are stopped, by devices with the release. A breach of one or two devices is
evidence about these devices: such a device is set aside, and the rollout continues.

"""
_SHARES = """
## Gates of shares

Evaluated after each device, and again as devices continue: the bound is valid at any time. At the
limit, devices differ (beta distribution, shape .5).

"""
_FOUND = """
## Found in 9 of 10

`limit exp((t + 1.28) sqrt(s0²/n + sA²/C))`, with noise sA .055 and effects that differ by .05.
`rollout start` prints these numbers for the fleet. Rows are controls, columns are devices.

"""
_NOISE = """
## Noise

Standard deviation of a device's number without a change, by the minutes since the switch. `p95`
assumes .055 until the fleet's own pairs A/A replace the assumption.

"""


def write_page(results: Results) -> str:
    """Return the page, in Markdown."""
    parts = [
        HEAD,
        _stopped(results.whole_stopped, results.whole_rollouts),
        _HARDER,
        _stopped(results.harder_stopped, results.harder_rollouts),
        _P95,
        _table(results.curves),
        _SHARES,
        _table(results.shares),
        _FOUND,
        _rows(
            ["controls", *next(iter(results.finds.values()))],
            [[name, *(f"{x:.2f}" for x in row.values())] for name, row in results.finds.items()],
        ),
        _NOISE,
        _rows(
            ["minutes", *results.noise_by_minutes],
            [["deviation", *(f"{x:.3f}" for x in results.noise_by_minutes.values())]],
        ),
    ]
    return "".join(parts)


def _stopped(by_gate: Mapping[str, int], rollouts: int) -> str:
    count = sum(by_gate.values())
    names = ", ".join(f"{name} {number}" for name, number in by_gate.items())
    told = f"**{count} of {rollouts:,} rollouts were stopped ({count / rollouts:.1%})**"
    return told + (f": {names}." if names else ".")


def _table(curves: Sequence[Curve]) -> str:
    by_steps: dict[tuple[str, ...], list[Curve]] = {}
    for curve in curves:
        by_steps.setdefault(tuple(curve.stopped_by), []).append(curve)
    return "\n".join(
        _rows(
            ["", "rollouts", *(f"by {step}" for step in steps)],
            [[one.title, f"{one.rollouts:,}", *_shares(one.stopped_by)] for one in told],
        )
        for steps, told in by_steps.items()
    )


def _shares(stopped_by: Mapping[str, float]) -> list[str]:
    return [f"{share:.4f}".rstrip("0").rstrip(".") or "0" for share in stopped_by.values()]


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
