"""Feedback: reports and measurements of devices are counted by variant, provider and hardware."""

from functools import partial
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from edgepack.bundle.feedback import Evidence, Feedback
from edgepack.errors import FleetError
from edgepack.fleet.commands.feedback import drift_lines, feedback_table
from edgepack.fleet.database.feedback import MAX_KINDS, gather
from edgepack.fleet.rollouts.statistics import ALPHA, lower_bet
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import (
    Active,
    Choice,
    DeviceFacts,
    Drift,
    FeatureDrift,
    ProbeResult,
    ProviderFacts,
    Reported,
    ReportedModel,
)
from tests.unit.fleet.world import NEW, OLD, PROVIDER, World, telemetry_window

BOUND = partial(lower_bet, alpha=ALPHA)

NPU = "QNNExecutionProvider"


def facts(hardware_class: str, *, simulates: bool = False) -> DeviceFacts:
    return DeviceFacts(
        arch="aarch64",
        cpu_model="Example",
        cpu_count=4,
        cpu_features=(),
        memory_bytes=1,
        os="Example",
        python="3.11",
        agent_version="1",
        runtime="1.31",
        providers=(
            ProviderFacts(name=NPU, available=True, because="listed", is_simulator=simulates),
        ),
        hardware_class=hardware_class,
    )


def probe(variant: str, provider: str, ms: float, *, wrong: str = "") -> ProbeResult:
    return ProbeResult(
        variant=variant,
        provider=provider,
        right=not wrong,
        because=wrong or "cosine 1.0",
        latency_ms=ms,
        worst_nrmse=0.5 if wrong else 0.01,
    )


def serving(
    chosen: ProbeResult,
    *others: ProbeResult,
    on: DeviceFacts,
    bundle: BundleRef = NEW,
    fallback: bool = False,
) -> Reported:
    choice = Choice(
        wanted=NPU if fallback else "",
        chosen=chosen.variant,
        provider=chosen.provider,
        because="the fastest that is right",
        is_fallback=fallback,
        probes=(chosen, *others),
    )
    model = ReportedModel(state="COMMITTED", active=Active(bundle=bundle, choice=choice, since=1.0))
    return Reported(online=True, at=1.0, boot="b", facts=on, models={NEW.name: model})


def feedback(world: World) -> Feedback:
    with world.store.reading() as session:
        return gather(session, NEW.name, 9.0, BOUND)


def by_key(found: Feedback) -> dict[tuple[str, str, str], Evidence]:
    return {(e.version, e.variant, e.hardware_class): e for e in found.evidence}


def test_probes_choices_and_inferences_are_counted_by_hardware(world: World) -> None:
    for number, ms in enumerate((4.0, 6.0, 5.0)):
        device = f"pi-{number}"
        world.enroll(device)
        wrong = probe("qnn-htp", NPU, 9.0, wrong="golden outputs differ")
        report = serving(probe("cpu", PROVIDER, ms), wrong, on=facts("pi"), fallback=number == 0)
        world.hear(device, report)
    world.enroll("sim")
    world.hear("sim", serving(probe("qnn-htp", NPU, 1.0), on=facts("x86", simulates=True)))
    world.enroll("old")
    world.hear("old", serving(probe("cpu", PROVIDER, 2.0), on=facts("pi"), bundle=OLD))
    world.hear("pi-0", telemetry_window(), "telemetry")
    found = by_key(feedback(world))
    cpu = found["2.0.0", "cpu", "pi"]
    assert (cpu.probed, cpu.right, cpu.chosen, cpu.fallbacks) == (3, 3, 3, 1)
    assert cpu.probe_ms == 5.0
    assert (cpu.inferences, cpu.failures) == (3, 0)
    assert cpu.p50_ms == pytest.approx(2.0, rel=0.1)
    npu = found["2.0.0", "qnn-htp", "pi"]
    assert (npu.probed, npu.right, npu.chosen) == (3, 0, 0)
    assert npu.wrong_because == "golden outputs differ"
    assert npu.worst_nrmse == 0.5
    assert npu.p50_ms is None
    assert found["2.0.0", "qnn-htp", "x86"].is_simulator
    assert [entry.version for entry in feedback(world).evidence] == ["2.0.0"] * 3 + ["1.0.0"]


def test_a_device_without_probes_counts_where_it_serves(world: World) -> None:
    world.enroll("a")
    report = serving(probe("cpu", PROVIDER, 1.0), on=facts("pi"))
    active = report.models[NEW.name].active
    assert active is not None
    choice = msgspec.structs.replace(active.choice, probes=())
    model = ReportedModel(state="COMMITTED", active=Active(bundle=NEW, choice=choice, since=1.0))
    world.hear("a", msgspec.structs.replace(report, models={NEW.name: model}))
    (row,) = feedback(world).evidence
    assert (row.chosen, row.right, row.probe_ms) == (1, 1, None)


def test_what_devices_make_up_is_bounded(world: World) -> None:
    for number in range(3):
        world.enroll(f"d{number}")
        made_up = [probe(f"v{number}-{i}", PROVIDER, 1.0) for i in range(300)]
        world.hear(f"d{number}", serving(*made_up, on=facts("pi" * 50)))
    assert len(feedback(world).evidence) <= MAX_KINDS
    assert all(len(entry.variant) <= 200 for entry in feedback(world).evidence)


def test_drift_and_shadow_inferences_are_told_of_devices_that_serve_it_no_more_too(
    world: World,
) -> None:
    for number, drift in enumerate((0.1, 0.2, 0.9)):
        device = f"pi-{number}"
        world.enroll(device)
        world.hear(device, serving(probe("cpu", PROVIDER, 5.0), on=facts("pi")))
        window = telemetry_window(drift=drift, shadow_count=100, shadow_agreed=90)
        world.hear(device, window, "telemetry")
    world.hear("pi-2", serving(probe("cpu", PROVIDER, 5.0), on=facts("pi"), bundle=OLD))
    world.enroll("silent")
    world.hear("silent", serving(probe("cpu", PROVIDER, 5.0), on=facts("x86")))
    found = by_key(feedback(world))
    cpu = found["2.0.0", "cpu", "pi"]
    assert (cpu.drift, cpu.worst_drift, cpu.drift_devices) == (0.2, 0.9, 3)
    assert (cpu.shadow_count, cpu.shadow_agreed, cpu.shadow_devices) == (300, 270, 3)
    assert cpu.shadow_mean == pytest.approx(0.9)
    assert cpu.shadow_most == pytest.approx(1.0 - BOUND([0.1] * 3))
    none = found["2.0.0", "cpu", "x86"]
    assert (none.drift, none.worst_drift, none.shadow_count) == (None, None, 0)
    shown = StringIO()
    Console(file=shown, width=200).print(feedback_table(feedback(world)))
    assert "0.2   90.0%" in shown.getvalue()


def test_a_model_that_the_fleet_does_not_know_is_an_error(world: World) -> None:
    with world.store.reading() as session, pytest.raises(FleetError, match="no release of 'x'"):
        gather(session, "x", 9.0, BOUND)


def test_drifted_features_are_named_with_their_devices(world: World) -> None:
    def report(now: float, loss: float | None, *words: str) -> Reported:
        features = tuple(
            FeatureDrift(
                words=one, difference=3.0 / (1 + number), now=now, build=0.5, is_change=True
            )
            for number, one in enumerate(words)
        )
        said = serving(probe("cpu", PROVIDER, 4.0), on=facts("pi"))
        drift = Drift(inferences=90, difference=3.0, features=features, loss=loss)
        model = msgspec.structs.replace(said.models[NEW.name], drift=drift)
        return msgspec.structs.replace(said, models={NEW.name: model})

    for number, (now, loss, words) in enumerate(
        (
            (0.1, 0.2, ("level of 'x'", "edges of 'x'")),
            (0.2, 0.4, ("level of 'x'",)),
            (0.3, None, tuple(f"feature {n}" for n in range(6))),
        )
    ):
        world.enroll(f"pi-{number}")
        world.hear(f"pi-{number}", report(now, loss, *words))
    (entry,) = feedback(world).evidence
    assert len(entry.drifted) == 5
    first = entry.drifted[0]
    assert (first.words, first.devices, first.build) == ("level of 'x'", 2, 0.5)
    assert first.now == pytest.approx(0.15)
    assert entry.loss == pytest.approx(0.3)
    lines = drift_lines(feedback(world))
    assert "level of 'x' is 0.15 and was 0.5 at the build" in lines[0]
    assert "2 devices" in lines[0]
    assert "30% of the task" in lines[-1]
