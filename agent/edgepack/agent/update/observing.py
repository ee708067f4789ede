"""Observation of a serving release, by its watch and before a shadowing release serves."""

import msgspec

from edgepack.agent.telemetry.outcomes import RECENT_S
from edgepack.agent.update.context import UpdateContext
from edgepack.agent.watch.ledger import Ledger
from edgepack.agent.watch.liveness import usual_ms
from edgepack.agent.watch.observed import Observed
from edgepack.agent.watch.table import ROWS, judge_all


def observe_serving(context: UpdateContext, ledger: Ledger, *, since: float) -> Observed:
    """Return what processes tell of the serving release: counts and the registry.

    Args:
        context: The model's update.
        ledger: Counts of the variant that serves.
        since: Begin of the judged time, monotonic clock, seconds; 10 minutes ago at most.
    """
    now, settings, (digest, variant) = context.now(), context.deps.config.watch, ledger.key
    pointer, found = context.model.pointer.read(), context.deps.tools.holders()
    # Some processes still serve another variant.
    held = (one for one in found.held if one.opening or one.variant in ("", variant))
    return msgspec.structs.replace(
        ledger.observed(now),
        model=context.model.name,
        digest=digest,
        holders=msgspec.structs.replace(found, held=tuple(held)),
        monotonic_s=now,
        since=max(since, now - RECENT_S),
        usual_ms=usual_ms(pointer.choice if pointer else None),
        hung_s=settings.hung_s,
        lasting_s=settings.lasting_s,
    )


def why_left(seen: Observed) -> str:
    """Return the first symptom for which the watch leaves a variant; "" without a symptom."""
    return next(
        (
            verdict.because
            for symptom, verdict in judge_all(seen)
            if verdict.answer == "proven" and "variant" in ROWS[symptom].steps
        ),
        "",
    )
