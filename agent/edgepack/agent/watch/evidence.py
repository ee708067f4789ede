"""Judgement of measurements: a function for each row of the watch's table. Pure."""

from edgepack.agent.state.holders import KEPT_S
from edgepack.agent.watch.liveness import find_deaths, find_hangs, find_silence
from edgepack.agent.watch.observed import DOUBTFUL, FINE, Bad, Observed, Verdict
from edgepack.agent.watch.shares import is_beyond_doubt
from edgepack.agent.watch.slowness import judge_past, judge_previous
from edgepack.text import counted
from edgepack.wire.drift_words import harm_words
from edgepack.wire.reports import Drift

TOLERATED_FAILURES = 0.01
"""Share of inferences that may go wrong; an application's own mistakes are among them."""
FAILURES_ALPHA = 1e-9
"""Error rate of one look after the commit. A year has 6 million looks, so a release at the limit is
left wrongly once in 150 years at most, if its failures are independent."""
DISAGREEMENT_ALPHA = 5e-4
"""Probability that a release at the limit is rolled back. Half of 1e-3, since spaced pairs still
depend on each other: in simulation, pairs three correlation times apart gave .0008 to .0023."""


def judge_processes(seen: Observed) -> Verdict:
    """Judge by deaths of processes; in a soak, also by a process that cannot open the release."""
    if seen.is_soaking and seen.troubles:
        return Verdict("proven", f"a process could not serve it: {seen.troubles[0]}")
    return find_deaths(
        seen.holders,
        seen.digest,
        since=seen.since,
        now=seen.monotonic_s,
        left_at=seen.left_at,
    )


def judge_hangs(seen: Observed) -> Verdict:
    """Judge by processes that hold or open the release and do not continue."""
    return find_hangs(
        seen.holders,
        seen.digest,
        usual_ms=seen.usual_ms,
        hung_s=seen.hung_s,
        now=seen.monotonic_s,
    )


def judge_silence(seen: Observed) -> Verdict:
    """Judge by missing inferences since the switch from a busy release."""
    if not seen.is_soaking or seen.switched_at is None:
        return FINE
    quiet_s = seen.monotonic_s - seen.since
    return find_silence(
        seen.holders, seen.model, seen.before, switched_at=seen.switched_at, quiet_s=quiet_s
    )


def judge_golden(seen: Observed) -> Verdict:
    """Judge by golden samples that ran again: in the processes that serve, and by the agent."""
    held = [one for one in seen.holders.held if one.digest == seen.digest and one.wrong]
    return certain(f"process {held[0].pid}: {held[0].wrong}" if held else seen.golden)


def judge_healed(seen: Observed) -> Verdict:
    """Judge by golden samples that differed in a process until the release was opened again."""
    recent = (
        f"process {one.pid}: {one.healed}; as at first since the release was opened again"
        for one in seen.holders.held
        if one.digest == seen.digest and one.healed
        if seen.monotonic_s - one.healed_at <= KEPT_S
    )
    return FINE if seen.is_soaking else certain(next(recent, ""))


def judge_failed(seen: Observed) -> Verdict:
    """Judge the share of failed inferences."""
    return _judge_share(seen, seen.failed, "failed")


def judge_not_finite(seen: Observed) -> Verdict:
    """Judge the share of inferences with NaN or infinity."""
    return _judge_share(seen, seen.not_finite, "gave NaN or infinity")


def judge_inputs(seen: Observed) -> Verdict:
    """Judge the share of inferences with NaN or infinity in an input: no release's fault."""
    if seen.is_soaking:
        return FINE
    kind = f"had NaN or infinity in the input {seen.bad_input!a}"
    verdict = _judge_share(seen, seen.bad_inputs, kind)
    if verdict == FINE:
        return FINE
    return verdict._replace(because=f"{verdict.because}: look at the application's inputs")


def _judge_share(seen: Observed, bad: Bad, kind: str) -> Verdict:
    """Judge inferences that went wrong: by their share during a soak, by a test afterwards.

    A release that soaks is unproven and goes back at the first doubt. A committed release needs
    evidence that is no chance and no short disturbance.
    """
    limit, when = TOLERATED_FAILURES, "while it soaked" if seen.is_soaking else "lately"
    if seen.is_soaking:
        is_proven = bad.count > limit * seen.inferences
    else:
        is_proven = bad.lasted_s >= seen.lasting_s and is_beyond_doubt(
            bad.count, seen.inferences, limit, FAILURES_ALPHA
        )
    if not is_proven:
        return FINE
    return Verdict(
        "proven",
        f"{bad.count} of {seen.inferences} real inferences {kind} {when}, more than {limit:.0%}",
    )


def judge_latency(seen: Observed) -> Verdict:
    """Judge the latency against the previous release, and after the commit against its own past.

    Heat slows every release down, so the watch tolerates any slowdown during and after heat.
    """
    if not seen.slowdown:
        return FINE
    return judge_previous(seen) if seen.is_soaking else judge_past(seen)


def judge_disagreement(seen: Observed) -> Verdict:
    """Judge the shadow inferences of a soak; doubtful while most disagree."""
    shadowed, limit = seen.shadowed, seen.disagree_max
    disagreed = shadowed.spaced - shadowed.spaced_agreed
    if not seen.is_soaking or not seen.title_before:
        return FINE
    if is_beyond_doubt(disagreed, shadowed.spaced, limit, DISAGREEMENT_ALPHA):
        inferences = counted(shadowed.spaced, "spaced shadow inference")
        return Verdict(
            "proven",
            f"it disagrees with {seen.title_before} in {disagreed} of {inferences} "
            f"({shadowed.agreed} of all {shadowed.count} agreed), beyond doubt more than "
            f"{limit:.3g}",
        )
    is_open = limit < 1.0 and not shadowed.because
    is_most = shadowed.spaced > 0 and 2 * shadowed.spaced_agreed <= shadowed.spaced
    return DOUBTFUL if is_open and is_most else FINE


def describe_harm(drift: Drift | None) -> str:
    """Return the harm of a drift, as a sentence; "" without evidence of harm."""
    loss = drift.loss if drift else None
    return harm_words(loss) if loss is not None else ""


def certain(because: str) -> Verdict:
    """Return the verdict on a fact that is measured without error; "" is no such fact."""
    return Verdict("proven", because) if because else FINE
