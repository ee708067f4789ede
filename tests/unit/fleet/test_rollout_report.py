"""A rollout as a single page: complete, harmless and self-contained."""

import re

import msgspec

from edgepack.fleet.dashboard.rollout_report import NAMED, render_report
from edgepack.fleet.documents.audit import AuditEntry
from edgepack.fleet.documents.gates import GateView
from edgepack.fleet.documents.rollouts import (
    AssignmentView,
    LatencyView,
    RolloutSettings,
    RolloutView,
)
from tests.unit.fleet.world import NEW

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"


GATE = GateView(
    name="p95",
    hardware_class="pi",
    threshold=1.1,
    comparison="ratio",
    unit="ms",
    devices=7,
    value=1.3,
    bound=1.21,
    before=2.0,
    now=2.6,
    verdict="breach",
    because="p95 is 1.30 x what it was",
)


def part(device: str, because: str, state: str = "FAILED") -> AssignmentView:
    told: dict[str, object] = dict.fromkeys(AssignmentView.__struct_fields__)
    told |= {"device": device, "wave": 1, "state": state, "because": because, "progress": 0.0}
    return AssignmentView(**told)  # type: ignore[arg-type]


def view(because: str = "2 of 4 devices failed") -> RolloutView:
    latency = LatencyView(
        hardware_class="pi",
        provider="CPUExecutionProvider",
        variant="cpu",
        is_simulator=False,
        devices=2,
        inferences=1234,
        failures=0,
        p50_ms=1.0,
        p95_ms=2.0,
        p99_ms=3.0,
    )
    return RolloutView(
        rollout="r7",
        bundle=NEW,
        selector=f"group {HOSTILE}",
        settings=RolloutSettings(waves="2,100%", soak_s=60.0, deadline_s=900.0, min_sample=1),
        wave=1,
        wave_count=2,
        state="PAUSED",
        because=because,
        started_at=1_000_000.0,
        changed_at=1_000_060.0,
        counts={"COMMITTED": 2, "FAILED": 14},
        wave_counts=({"COMMITTED": 2, "FAILED": 14}, {"WAITING": 3}),
        latency=(latency,),
        gates=(GATE, msgspec.structs.replace(GATE, name="drift", verdict="no evidence")),
    )


def act(action: str, at: float) -> AuditEntry:
    return AuditEntry(
        id=int(at),
        at=at,
        actor=HOSTILE,
        action=action,
        rollout="r7",
        device="",
        model=NEW.name,
        digest=NEW.digest,
        because="14 of 16 failed",
        numbers={"failed": 14, "share": 0.875},
    )


def test_it_tells_waves_failures_latency_and_decisions() -> None:
    failed = [part(f"cam-{number}", "too hot") for number in range(NAMED + 1)]
    page = render_report(view(), [*failed, part("odd", "")], [act("rollout.breach", 2.0)])
    assert "1970-01-12 13:46:40" in page
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "13 too hot cam-0, cam-1" in text
    assert "and 1 more" in text
    assert "1 no reason reported odd" in text
    assert "failed 14, share 0.875" in text
    assert "1,234" in text
    assert "p95 pi breach 7 – 2 ms 2.6 ms 1.30 x 1.21 x 1.10 x" in text
    assert "No evidence: drift." in text


def test_decisions_are_told_in_the_order_in_which_they_were_made() -> None:
    page = render_report(view(), [], [act("rollout.breach", 2.0), act("rollout.start", 1.0)])
    assert page.index("rollout.start") < page.index("rollout.breach")
    assert "No device failed" in page


def test_it_runs_nothing_and_loads_nothing() -> None:
    page = render_report(view(HOSTILE), [part(HOSTILE, HOSTILE)], [act("rollout.start", 1.0)])
    assert "<script" not in page
    assert not re.search(r"\b(src|href)\s*=|url\(|@import", page)
    assert "default-src 'none'" in page
    assert "\x1b" not in page
    assert "\u202e" not in page
