"""Evidence from the processes that hold a model: deaths, hangs and silence. Pure."""

from edgepack.agent.state.holders import BEAT_S, Death, Held, Holders
from edgepack.agent.telemetry.pace import Pace
from edgepack.agent.watch.observed import DOUBTFUL, FINE, Verdict
from edgepack.text import counted
from edgepack.wire.reports import Choice

DEATHS = 3
"""Deaths that condemn a release. A person restarts an application once or twice."""
HUNG_TIMES = 20.0
"""No inference hangs that is shorter than so many times the latency of the device's own probe."""
OPENING_S = 300.0
"""Longest time to open a release: no heartbeat comes meanwhile."""
MOST_BEAT_S = 10.0
"""No process may state a longer pause between its heartbeats."""
SUSPECT_SHARE = 0.1
"""A soak does not end while a process is silent for more than this share of its limit,"""
SUSPECT_S = 60.0
"""nor so soon after a death."""
BUSY_INTERVALS = 5
"""Intervals with inferences in a row, up to the switch, that make silence evidence."""
QUIET_TIMES = 2.0
"""Silence is evidence if it is longer than so many times the longest of these intervals."""


def find_deaths(
    holders: Holders, digest: str, *, since: float, now: float, left_at: float = 0.0
) -> Verdict:
    """Judge a release by the processes that died while they held or opened the release.

    Deaths are evidence if there are three, and more than twice as many as in as much time before:
    some applications are killed at the end of each task. A process that ran several releases does
    not say which release was the cause: a release is spared if another was suspect at each of its
    deaths, and died without the release, too.

    Args:
        holders: The registry.
        digest: The release.
        since: Begin of the judged time, monotonic clock, seconds.
        now: The time.
        left_at: When the watch left a variant of the release for deaths; 0 if it did not. Deaths of
            the release until then were acted on, and are not among those before.
    """
    times = [death.at for death in holders.deaths if digest in death.held.releases]
    model = {death.held.model for death in holders.deaths if digest in death.held.releases}
    recent = sum(at >= since for at in times)
    earlier = sum(
        2 * since - now <= death.at < since
        and death.held.model in model
        and not (digest in death.held.releases and death.at < left_at)
        for death in holders.deaths
    )
    others = _find_others(holders.deaths, digest, since)
    is_explained = any(
        death.at >= since and death.held.releases & set(others) and digest not in _suspects(death)
        for death in holders.deaths
    )
    if recent >= DEATHS and recent > 2 * earlier and not is_explained:
        names = ", ".join(sorted(set(others.values())))
        beside = f"; each ran {names}, too: one of them is the cause" if names else ""
        return Verdict(
            "proven",
            f"{recent} processes that held it died within {now - since:.0f} s, "
            f"and {earlier} in the {now - since:.0f} s before{beside}",
        )
    is_doubtful = any(at >= since and now - at < SUSPECT_S for at in times)
    return DOUBTFUL if is_doubtful else FINE


def _find_others(deaths: tuple[Death, ...], digest: str, since: float) -> dict[str, str]:
    """Return the other releases that were suspect at each death of a release, with their models."""
    models: dict[str, str] = {}
    common: set[str] | None = None
    for death in deaths:
        if death.at >= since and digest in death.held.releases:
            found = {one: held.model for held in death.others for one in held.releases}
            models |= found
            common = set(found) if common is None else common & set(found)
    return {one: models[one] for one in common or set() if one != digest}


def _suspects(death: Death) -> frozenset[str]:
    return death.held.releases.union(*(held.releases for held in death.others))


def find_hangs(
    holders: Holders, digest: str, *, usual_ms: float, hung_s: float, now: float
) -> Verdict:
    """Judge a release by the processes that hold or open the release and do not continue.

    On a crowded device, a process that waits for a core looks like a process that hangs, so all
    limits are longer.

    Args:
        holders: The registry.
        digest: The release.
        usual_ms: Latency of the device's own probe, milliseconds; 0 if unknown.
        hung_s: Seconds without a heartbeat, or of an inference, after which a process hangs.
        now: Monotonic clock, seconds.
    """
    hung_s, opening_s = hung_s * holders.crowd, OPENING_S * holders.crowd
    inference_s = max(hung_s, HUNG_TIMES * usual_ms / 1000)
    is_doubtful = False
    for held in holders.held:
        if digest not in held.releases:
            continue
        silent_s = now - held.beat_at
        running_s = now - held.running_since if held.running_since else 0.0
        title = f"process {held.pid} hangs"
        late_s = 3 * max(BEAT_S, min(held.every_s, MOST_BEAT_S))
        if silent_s > (opening_s if held.opening else max(hung_s, late_s)):
            doing = "while it opens the model" if held.opening == digest else "with the model"
            return Verdict("proven", f"{title}: no heartbeat for {silent_s:.0f} s {doing}")
        if running_s > inference_s:
            return Verdict(
                "proven",
                f"{title}: an inference runs for {running_s:.0f} s, "
                f"at most {inference_s:.0f} s are usual",
            )
        is_doubtful |= bool(held.opening)
        is_doubtful |= silent_s > max(late_s, SUSPECT_SHARE * hung_s)
        is_doubtful |= running_s > SUSPECT_SHARE * inference_s
    return DOUBTFUL if is_doubtful else FINE


def find_silence(
    holders: Holders, model: str, before: Pace, *, switched_at: float, quiet_s: float
) -> Verdict:
    """Judge a release by missing inferences, if the previous release was busy until the switch.

    An application that closes the model is silent by its own will: without a process that holds the
    model, or died with the model, silence is no evidence.

    Args:
        holders: The registry.
        model: The model's name.
        before: Pace of the previous release.
        switched_at: Time of the switch, seconds since the epoch.
        quiet_s: Seconds without any inference since the switch.
    """
    intervals = before.intervals[-BUSY_INTERVALS:]
    if len(intervals) < BUSY_INTERVALS:
        return FINE
    longest_s = max(one.length_s for one in intervals)
    was_busy = abs(switched_at - before.seen_at) <= longest_s
    present: list[Held] = [held for held in holders.held if held.model == model]
    present += [death.held for death in holders.deaths if death.held.model == model]
    if not was_busy or not present or not longest_s:
        return FINE
    if quiet_s <= QUIET_TIMES * longest_s:
        return DOUBTFUL
    inferences = counted(sum(one.count for one in intervals), "inference")
    return Verdict(
        "proven",
        f"no inference for {quiet_s:.0f} s, although a process holds the model; "
        f"{inferences} ran in {sum(one.length_s for one in intervals):.0f} s before the switch",
    )


def usual_ms(choice: Choice | None) -> float:
    """Return the longest latency of the device's own probes, milliseconds; 0 if unknown."""
    probes = choice.probes if choice else ()
    return max((one.latency_ms or 0.0 for one in probes), default=0.0)
