"""Measurements of a release that serves, and the rows' verdicts on them."""

from typing import Literal, NamedTuple

import msgspec

from edgepack.agent.state.holders import Holders
from edgepack.agent.telemetry.pace import Interval, Pace
from edgepack.agent.telemetry.shadowed import Shadowed

Answer = Literal["fine", "doubtful", "proven"]


class Verdict(NamedTuple):
    """The answer of a row, and the reason with its numbers for `proven`."""

    answer: Answer
    because: str = ""


FINE, DOUBTFUL = Verdict("fine"), Verdict("doubtful")


class Bad(msgspec.Struct, frozen=True, kw_only=True):
    """Inferences that went wrong in one way.

    Attributes:
        count: Number of them.
        lasted_s: Seconds from the first report of them to the last.
    """

    count: int = 0
    lasted_s: float = 0.0


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the serving release since its switch, or of the last minutes.

    Attributes:
        is_soaking: Whether the release is not committed yet.
        title_before: The previous release, in words; "" without one.
        inferences: Inferences that were tried.
        failed, not_finite: Inferences that raised, and those with NaN or infinity in an output
            that has none in the golden samples, although all inputs were finite.
        bad_inputs, bad_input: The same with NaN or infinity in an input, and the last such input.
        lasting_s: Seconds for which inferences must go wrong after the commit, at least.
        troubles: Why processes could not serve the release.
        holders: Registry of the processes that hold a model.
        model, digest: Name and digest of the release.
        monotonic_s, since: Now, and begin of the judged time, monotonic clock, seconds.
        left_at: When the watch left another variant of the release for deaths, monotonic clock,
            seconds; 0 if it did not.
        usual_ms: Latency of the device's own probe, milliseconds; 0 if unknown.
        hung_s: Seconds after which a silent process, or one with a running inference, hangs.
        switched_at: Time of the switch, seconds since the epoch, if no inference ran since; else
            None.
        before: Pace of the previous release, during the soak; else of this release, earlier.
        now: Pace of this release.
        recent: The last short intervals of this release, the newest last.
        recent_first_tokens: The same of the times to the first token.
        slowdown: Tolerated ratio of latencies; 0 tolerates any.
        is_last: Whether the soak cannot wait any longer.
        is_awaited: Whether applications may still come that used the previous release.
        shadowed: Inferences that the previous release computed, too.
        disagree_max: Share of shadow inferences that may disagree.
        basis: Change of provider, driver, runtime or firmware since the choice; "" for none.
        golden: How golden samples that the agent ran again differ from the device's own first
            outputs; "" if equal.
        damage: Why the release's files are incomplete or changed; "" if complete.
        harm: Loss that a fallen confidence shows, in words (`harm_words`); "" without any.
        heat: Signs of a device that slows down for heat; "" for none.
    """

    is_soaking: bool
    title_before: str = ""
    inferences: int = 0
    failed: Bad = Bad()
    not_finite: Bad = Bad()
    bad_inputs: Bad = Bad()
    bad_input: str = ""
    lasting_s: float = 0.0
    troubles: tuple[str, ...] = ()
    holders: Holders = Holders()
    model: str = ""
    digest: str = ""
    monotonic_s: float = 0.0
    since: float = 0.0
    left_at: float = 0.0
    usual_ms: float = 0.0
    hung_s: float = 30.0
    switched_at: float | None = None
    before: Pace = Pace()
    now: Pace = Pace()
    recent: tuple[Interval, ...] = ()
    recent_first_tokens: tuple[Interval, ...] = ()
    slowdown: float = 0.0
    is_last: bool = False
    is_awaited: bool = False
    shadowed: Shadowed = Shadowed()
    disagree_max: float = 1.0
    basis: str = ""
    golden: str = ""
    damage: str = ""
    harm: str = ""
    heat: str = ""
