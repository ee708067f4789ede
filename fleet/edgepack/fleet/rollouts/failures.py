"""The gate of failures: how many devices of a wave may fail, or stay silent.

A finished wave is evaluated by its share of failures: further evidence will not come, so a failed
canary of a single device stops a rollout. A running wave is evaluated from a least sample
on, by certain facts: either more devices have failed than the whole wave may have, or the share's
lower bound is above the threshold. The bound is valid at any time (beta-binomial), because the wave
is evaluated after each device. The first few devices of a large wave are weak evidence.
"""

from collections import Counter
from collections.abc import Collection

import msgspec

from edgepack.fleet.documents.gates import GateVerdict, GateView
from edgepack.fleet.documents.rollouts import OnBreach
from edgepack.fleet.rollouts.counting import (
    DECIDED,
    FAILURES,
    LIVE,
    AssignmentState,
    Classes,
    Wave,
    count,
    over,
)
from edgepack.fleet.rollouts.statistics import ALPHA, lower_share
from edgepack.text import counted

FAILURES_GATE = "failures"


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """Threshold of failures in a wave.

    Attributes:
        max_failed_share: 0..1, greatest share of failed (or silent) among decided devices.
        min_sample: Decided devices before a running wave is evaluated; a wave with all devices
            decided is evaluated at any size.
        on_breach: Action on the rollout, or on the hardware class.
        alpha: Error probability of the gate and a class.
    """

    max_failed_share: float
    min_sample: int
    on_breach: OnBreach
    alpha: float = ALPHA


def judge_failures(
    rule: Threshold,
    classes: Classes,
    wave: int,
    *,
    accepted_failures: int,
    accepted: Collection[str],
) -> tuple[GateView, ...]:
    """Return the gate's result for the current wave.

    Args:
        rule: Threshold.
        classes: The devices by class for separate evaluation; "" for all together.
        wave: Index of the current wave; -1 before the first.
        accepted_failures: Failures that a person accepted by resuming.
        accepted: Breaches that a person accepted by resuming, as keys of `gates.key`.
    """
    is_over = over(classes, wave)
    views = []
    for name, waves in classes.items():
        current = sum(map(Counter, waves[max(wave, 0) : wave + 1]), Counter[AssignmentState]())
        is_known = f"{FAILURES_GATE}/{name}" in accepted
        is_accepted = is_known or count([current], FAILURES) <= accepted_failures
        views.append(_judge_one(rule, name, current, max(wave, 0), name in is_over, is_accepted))
    return tuple(views)


def _judge_one(
    rule: Threshold, name: str, wave: Wave, index: int, is_over: bool, is_accepted: bool
) -> GateView:
    decided, failed = count([wave], DECIDED), count([wave], FAILURES)
    share = failed / decided if decided else None
    of_class = f" of {name}" if name else ""
    because = (
        f"{failed} of {counted(decided, 'decided device')}{of_class} of wave {index + 1} "
        "failed or stayed silent"
    )
    bound = None if is_over or not decided else lower_share(failed, decided, rule.alpha)
    verdict: GateVerdict
    if share is None:
        verdict, because = "no evidence", "no device has decided"
    elif not is_over and decided < rule.min_sample:
        verdict = "too few"
    elif share <= rule.max_failed_share:
        verdict = "pass"
    elif bound is None or max(bound, failed / count([wave], LIVE)) > rule.max_failed_share:
        verdict = "accepted" if is_accepted else "breach"
        because += f" ({share:.0%}), more than {rule.max_failed_share:.0%}"
    else:
        verdict = "pass"
        because += (
            f" ({share:.0%}); of so few that does not prove more than the "
            f"{rule.max_failed_share:.0%} that is let pass"
        )
    return GateView(
        name=FAILURES_GATE,
        hardware_class=name,
        threshold=rule.max_failed_share,
        comparison="share",
        unit="%",
        devices=decided,
        value=share,
        bound=bound,
        before=None,
        now=share,
        verdict=verdict,
        because=because,
    )
