"""A device's own text is printed without terminal control."""

import json
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from edgepack.fleet.commands import show
from edgepack.fleet.commands.devices import device_panel
from edgepack.fleet.commands.latency import latency_table
from edgepack.fleet.commands.preview import preview_panel, rollback_panel
from edgepack.fleet.commands.printing import LogFormatter, print_result
from edgepack.fleet.database import inventory
from edgepack.fleet.documents.devices import DeviceDetails
from edgepack.fleet.documents.fleet import EventView, FleetInfo
from edgepack.fleet.documents.latency import Dimension, LatencyPart, LatencyReport
from edgepack.fleet.documents.previews import (
    OUTCOMES,
    PreviewPart,
    RollbackPart,
    RollbackPreview,
    RolloutPreview,
)
from edgepack.fleet.documents.rollouts import (
    AssignmentView,
    LatencyView,
    RolloutSettings,
    RolloutView,
)
from edgepack.wire.orders import BundleRef
from tests.simulators.world import make_facts
from tests.unit.fleet.world import World, says

HOSTILE = "\x1b[2J\x9b31m\u202e\r\nroot# "
INFO = FleetInfo(
    tenant="t",
    broker="mqtt://127.0.0.1:1883",
    is_connected=True,
    broker_is_tls=False,
    devices=1,
    online=1,
    counters={},
    sent_bytes={"broadcast": 0, "coded": 0, "repair": 0},
    pace_bytes_per_s=8e6,
)
EVENT = EventView(
    id=1,
    at=1e308,
    device="cam-1",
    kind=HOSTILE,
    bundle=HOSTILE,
    from_state=HOSTILE,
    to_state=HOSTILE,
    because=HOSTILE,
    rollout=HOSTILE,
)
ROLLOUT = RolloutView(
    rollout="r1",
    bundle=BundleRef(name=HOSTILE, version=HOSTILE, release=1, digest="aa"),
    selector="all devices",
    settings=RolloutSettings(waves="100%", soak_s=1.0, deadline_s=2.0, min_sample=5),
    wave=1,
    wave_count=1,
    state="RUNNING",
    because=HOSTILE,
    started_at=1.0,
    changed_at=1.0,
    counts={"WORKING": 1, HOSTILE: 1},
    assignments=(
        AssignmentView(
            device="cam-1",
            wave=1,
            state="WORKING",
            offered_at=None,
            decided_at=None,
            because=HOSTILE,
            device_state=HOSTILE,
            provider=HOSTILE,
            variant=HOSTILE,
        ),
    ),
    latency=(
        LatencyView(
            hardware_class=HOSTILE,
            provider=HOSTILE,
            variant=HOSTILE,
            devices=1,
            inferences=1,
            failures=0,
            p50_ms=1.0,
            p95_ms=1.0,
            p99_ms=1.0,
        ),
    ),
)


def hostile_devices(world: World) -> Any:
    world.enroll("cam-1")
    world.hear("cam-1", says(HOSTILE, because=HOSTILE, active=ROLLOUT.bundle))
    with world.store.transaction() as session:
        return inventory.list_devices(session)


PREVIEW = RolloutPreview(
    bundle=ROLLOUT.bundle,
    selector=HOSTILE,
    waves=(1,),
    parts=tuple(
        PreviewPart(
            outcome=outcome, devices=9, examples=("cam-1",), because=HOSTILE, runs=ROLLOUT.bundle
        )
        for outcome in OUTCOMES
    ),
    counts={},
    refusal=HOSTILE,
    remedy=HOSTILE,
)
ROLLBACK = RollbackPreview(
    takes_back=ROLLOUT.bundle,
    ends="r1",
    parts=(
        RollbackPart(
            to=ROLLOUT.bundle, devices=1, wave_count=1, examples=("cam-1",), because=HOSTILE
        ),
        RollbackPart(to=None, devices=1, wave_count=0, examples=("cam-2",), because=HOSTILE),
    ),
    refusal=HOSTILE,
)


def hostile_device(world: World) -> DeviceDetails:
    world.enroll("cam-1")
    facts = replace(make_facts(), soc=HOSTILE, cpu_model=HOSTILE, runtime=HOSTILE)
    report = replace(says(HOSTILE, because=HOSTILE, active=ROLLOUT.bundle), facts=facts)
    world.hear("cam-1", replace(report, warnings=(HOSTILE,)))
    world.start()
    with world.store.reading() as session:
        return inventory.show_device(session, "cam-1")


@pytest.mark.parametrize(
    "kind", ["device", "devices", "events", "preview", "rollback", "rollout", "rollouts"]
)
@pytest.mark.parametrize("as_json", [False, True])
def test_escapes_of_devices_reach_no_terminal(
    world: World, capsys: pytest.CaptureFixture[str], kind: str, as_json: bool
) -> None:
    kinds: dict[str, tuple[Callable[[World], Any], Callable[[Any], Any]]] = {
        "device": (hostile_device, lambda v: device_panel(v, 2.0)),
        "devices": (hostile_devices, lambda v: show.devices_table(v, INFO, 2.0)),
        "events": (lambda _: (EVENT,), lambda v: show.events_table(v, 2.0)),
        "preview": (lambda _: PREVIEW, preview_panel),
        "rollback": (lambda _: ROLLBACK, rollback_panel),
        "rollout": (lambda _: ROLLOUT, show.rollout_panel),
        "rollouts": (lambda _: (ROLLOUT,), show.rollouts_table),
    }
    make, picture = kinds[kind]
    value = make(world)
    print_result(value, as_json, picture)
    printed = capsys.readouterr().out
    assert "root#" in printed
    assert all(line.isprintable() for line in printed.split("\n"))
    assert not any(line.strip().startswith("root#") for line in printed.split("\n"))
    if as_json:
        assert json.loads(printed) == json.loads(msgspec.json.encode(value))


def test_a_rollback_of_what_nobody_committed_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = replace(ROLLBACK, parts=(), refusal="")
    print_result(nobody, False, rollback_panel)
    assert "no device has committed it, so none has to go back" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("enrolled", "said"),
    [(0, "no device is enrolled yet: edgepack"), (3, "no device is like that")],
)
def test_a_list_without_devices_says_why(
    enrolled: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    info = replace(INFO, devices=enrolled)
    print_result((), False, lambda shown: show.devices_table(shown, info, 2.0))
    assert capsys.readouterr().out.startswith(said)


def test_the_log_of_serve_keeps_one_line_a_record() -> None:
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "topic=%s dropped", (HOSTILE,), None)
    assert LogFormatter().format(record).isprintable()


def test_a_log_keeps_its_traceback_below() -> None:
    try:
        int(HOSTILE)
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "broken", (), info)
    lines = LogFormatter().format(record).split("\n")
    assert len(lines) > 2
    assert all(line.isprintable() for line in lines)


def test_the_fleets_numbers_are_sentences_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(
        msgspec.structs.replace(INFO, counters={"need": 3, "event": 1}), False, show.info_table
    )
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "fleet     t",
        "broker    mqtt://127.0.0.1:1883, connected",
        "devices   1, 1 online",
        "sent      0.0 MB broadcast, 0.0 MB coded, 0.0 MB repair",
        "pace      8.0 MB/s",
        "messages  1 event, 3 need",
    ]


def test_a_simulator_s_times_are_not_printed_beside_real_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = LatencyView(
        hardware_class="x86_64/avx2/Xeon",
        provider="CPUExecutionProvider",
        variant="cpu",
        devices=2,
        inferences=304,
        failures=0,
        p50_ms=1.25,
        p95_ms=9.2,
        p99_ms=18.22,
    )
    simulated = msgspec.structs.replace(
        real,
        provider="QNNExecutionProvider",
        variant="qnn-htp",
        devices=1,
        inferences=9,
        p50_ms=819.22,
        is_simulator=True,
    )
    rollout = msgspec.structs.replace(ROLLOUT, latency=(real, simulated))
    print_result(rollout, False, show.rollout_panel)
    printed = capsys.readouterr().out
    assert "1.25" in printed
    assert "819.22" not in printed
    assert printed.splitlines()[-1].strip() == (
        "QNN is simulated on 1 device, and its times are not comparable: "
        "9 inferences of qnn-htp, 0 failed"
    )


def test_devices_are_listed_in_the_order_of_their_numbers(world: World) -> None:
    for name in ("sim-10", "sim-2", "sim-1"):
        world.enroll(name)
    name = world.start()
    assert [part.device for part in world.view(name).assignments] == ["sim-1", "sim-2", "sim-10"]


def test_what_a_device_warns_of_and_what_was_dropped_of_it_is_shown(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.enroll("cam-1")
    world.hear("cam-1", replace(says("IDLE"), warnings=("the disk is worn", "the clock is wrong")))
    with world.store.reading() as session:
        views = inventory.list_devices(session)
        details = replace(
            inventory.show_device(session, "cam-1"), dropped={"event over quota": 4501}
        )
    print_result(views, False, lambda shown: show.devices_table(shown, INFO, 2.0))
    assert "online, 2 warnings" in capsys.readouterr().out
    print_result(details, False, lambda shown: device_panel(shown, 2.0))
    printed = capsys.readouterr().out.splitlines()
    rows = [line.strip().split(maxsplit=1) for line in printed]
    assert ["warning", "the disk is worn"] in rows
    assert ["warning", "the clock is wrong"] in rows
    assert ["dropped", "4501 event over quota"] in rows
    print_result(replace(INFO, dropped={"cam-1": 4501}), False, show.info_table)
    assert ["dropped", "4501 cam-1"] in [
        line.strip().split(maxsplit=1) for line in capsys.readouterr().out.splitlines()
    ]


def test_latency_is_a_line_for_each_part_with_what_tells_it_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = LatencyPart(
        hardware_class="hexagon-v73",
        provider="QNNExecutionProvider",
        at=0.0,
        is_simulator=True,
        inferences=1200,
        failures=2,
        p50_ms=1.234,
        p95_ms=2.0,
        p99_ms=3.0,
        max_ms=9.5,
    )
    report = LatencyReport(since=0.0, until=60.0, step_s=60, parts=(part,))
    by: tuple[Dimension, ...] = ("hardware_class", "provider", "version")
    print_result(report, False, lambda shown: latency_table(shown, by, 60.0))
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "hardware class provider version p50, ms p95, ms p99, ms greatest, ms inferences failures",
        "hexagon-v73 QNNExecutionProvider (simulated) – 1.23 2.00 3.00 9.50 1,200 2",
    ]
    nothing = LatencyReport(since=0.0, until=60.0, step_s=60, parts=())
    assert latency_table(nothing, (), 60.0) == "no latency was reported in that time"
