"""The device's report: journals and pointers of the models, and the time of the next report."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from edgepack.agent.telemetry.failing import Failing
from edgepack.agent.telemetry.outcomes import describe_failures
from edgepack.agent.update.models import Models
from edgepack.agent.update.remembering import is_left
from edgepack.agent.update.updater import Updater
from edgepack.wire.messages import MAX_MESSAGE_BYTES, encode
from edgepack.wire.orders import RunModel
from edgepack.wire.reports import (
    Active,
    CaptureReport,
    Drift,
    Outcomes,
    Renewal,
    Reported,
    ReportedModel,
    Trusted,
)

UNREADABLE = "UNREADABLE"
"""State of a model whose files a newer edgepack wrote: it is left alone."""
MAX_WARNINGS = 20
_BUDGET_BYTES = MAX_MESSAGE_BYTES - 1024
_BRIEF_TEXT = 200


class Recent(NamedTuple):
    """Recent inferences of a release: outcomes, and differences from the build."""

    outcomes: Outcomes | None = None
    drift: Drift | None = None


RecentOf = Callable[[str], Recent]
"""Returns the recent inferences of a release, by its digest."""


def nothing_recent(_digest: str) -> Recent:
    """Return no recent inferences."""
    return Recent()


def warn_of_failures(models: Models, recent: RecentOf) -> tuple[str, ...]:
    """Return a sentence for each model with failing recent inferences."""
    found = []
    for updater in models:
        active = updater.active
        known = recent(active.digest).outcomes if active else None
        if active and known and (failures := describe_failures(known)):
            found.append(f"{updater.name} {active.bundle.version}: {failures}")
    return tuple(found)


def failing_releases(models: Models, recent: RecentOf) -> dict[str, Failing | None]:
    """Return the recent inferences of each serving release by digest; None where none ran."""
    found: dict[str, Failing | None] = {}
    for updater in models:
        if (active := updater.active) is None:
            continue
        known, journal = recent(active.digest).outcomes, updater.journal
        previous = journal.previous if active.committed else journal.back
        if previous is not None and is_left(journal, previous):
            previous = None
        found[active.digest] = None
        if known is not None:
            found[active.digest] = Failing(
                model=updater.name,
                version=active.bundle.version,
                outcomes=known,
                since=0.0,
                previous=previous.bundle.version if previous else "",
            )
    return found


def report_due_s(device: str, heartbeat_s: float, *, is_news: bool) -> float:
    """Return seconds after a report until the next report is due, even without changes.

    A broker drops messages for a controller that cannot keep up, at any QoS: with 200 devices that
    finished at once, mosquitto (its default queue is 1,000) lost the last word of 109. So news is
    said once more after 10 to 20 s, by each device at a moment of its own, and then as a heartbeat.
    """
    if not is_news:
        return heartbeat_s
    return min(heartbeat_s, 10.0 + zlib.crc32(device.encode()) % 1000 / 100)


def report_model(
    updater: Updater,
    recent: RecentOf = nothing_recent,
    capture: CaptureReport | None = None,
) -> ReportedModel:
    """Return the report of a model: journal, pointer and outcomes of recent inferences."""
    journal, pointer = updater.journal, updater.active
    offer = journal.offer
    active, seen = None, Recent()
    is_uncommitted = pointer is not None and not pointer.committed
    if pointer is not None:
        active = Active(bundle=pointer.bundle, choice=pointer.choice, since=pointer.since)
        seen = recent(pointer.digest)
    return ReportedModel(
        state=UNREADABLE if updater.is_sealed else journal.state,
        because=updater.trouble if updater.is_sealed else journal.because,
        sequence=offer.sequence if offer else 0,
        acted_sequence=journal.acted_sequence,
        rollout=offer.rollout if offer else "",
        target=offer.bundle if isinstance(offer, RunModel) else None,
        active=active,
        previous=journal.previous.bundle if journal.previous else None,
        is_too_slow=journal.is_too_slow,
        progress=updater.progress,
        outcomes=seen.outcomes,
        drift=seen.drift,
        watch=journal.watch.told if journal.committed and not is_uncommitted else None,
        capture=capture,
    )


def make_report(
    models: Models,
    troubles: Sequence[str],
    *,
    sequence: int,
    boot: str,
    at: float,
    trust: Trusted | None = None,
    renewal: Renewal | None = None,
    recent: RecentOf = nothing_recent,
    captures: Mapping[str, CaptureReport] = {},
) -> Reported:
    """Return the report of the device: the state of all its journals.

    Args:
        models: The models.
        troubles: Further problems; "" is skipped.
        sequence: Sequence of the `Desired` that was heard last.
        boot: Random id of this process.
        at: Seconds since the epoch.
        trust: Accepted state of the fleet's metadata.
        renewal: Asks for another certificate.
        recent: Returns the recent inferences of a release.
        captures: State of requests for samples, by model.
    """
    report = Reported(
        online=True,
        at=at,
        boot=boot,
        facts=models.facts,
        sequence=sequence,
        models={
            updater.name: report_model(updater, recent, captures.get(updater.name))
            for updater in models
        },
        warnings=(
            *filter(None, troubles),
            *warn_of_failures(models, recent),
            *models.troubles,
        )[:MAX_WARNINGS],
        trust=trust,
        renewal=renewal,
    )
    if len(encode(report)) <= _BUDGET_BYTES:
        return report
    brief = {name: _without_probes(model) for name, model in report.models.items()}
    return msgspec.structs.replace(report, models=brief)


def _without_probes(model: ReportedModel) -> ReportedModel:
    """Return a model without its probes and drift: many models must fit into one message."""
    because = model.because[:_BRIEF_TEXT]
    active = model.active
    if active is not None:
        choice = msgspec.structs.replace(
            active.choice, probes=(), rejected={}, because=active.choice.because[:_BRIEF_TEXT]
        )
        active = msgspec.structs.replace(active, choice=choice)
    watch = model.watch
    if watch is not None:
        watch = msgspec.structs.replace(watch, because=watch.because[:_BRIEF_TEXT])
    return msgspec.structs.replace(model, because=because, active=active, drift=None, watch=watch)
