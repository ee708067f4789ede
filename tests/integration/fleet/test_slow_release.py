"""A canary stops a slow release: real agents, real models, real applications, a real broker."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.serving import following
from edgepack.agent.serving.model import Model
from edgepack.agent.telemetry.journal import JOURNAL_FILE, STORED
from edgepack.agent.telemetry.pace import Pace
from edgepack.bundle.archive import pack
from edgepack.bundle.keys import load_private_key
from edgepack.fleet.documents.rollouts import RolloutView
from tests.integration.fleet.applications import (
    CAMERA_NAMES,
    Applications,
    applications_of,
    start_cameras,
)
from tests.integration.fleet.conftest import (
    CAMERAS,
    FleetProcess,
    Mosquitto,
    Serve,
    StartAgent,
    edgepack,
)
from tests.integration.fleet.dashboard import Visitor
from tests.simulators.bundles import WIDTH, ExampleBundle, make_bundle
from tests.simulators.waiting import wait_until

SLOW_LAYERS = 600
"""So many more layers take tens of times as long, on any machine."""
INTERVAL_S = 2.0
SETTINGS = f"\n[telemetry]\ninterval_s = 0.5\n[watch]\ninterval_s = {INTERVAL_S}\n"
MakeArchive = Callable[..., tuple[Path, ExampleBundle]]


LIGHT = 1000.0
"""A release may be slow on inputs above: what only an odd device sees."""


class Light:
    """Input of the devices: the first device with release 2 gets inputs that slow down."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._odd: Model | None = None

    def infer(self, model: Model, rng: np.random.Generator, _: threading.Event) -> None:
        x = rng.standard_normal((1, WIDTH)).astype(np.float32)
        with self._lock:
            if self._odd is None and model.bundle.release == 2:
                self._odd = model
            is_odd = self._odd is model and model.bundle.release == 2
        x[0, 0] = 2 * LIGHT if is_odd else x[0, 0]
        model.run({"x": x})


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> Iterator[Applications]:
    """Start applications with frequent writes of their sketches."""
    monkeypatch.setattr(following, "SPOOL_S", 0.1)
    with applications_of("tiny", Light().infer) as running:
        yield running


@pytest.fixture
def archive(tmp_path: Path, key_prefix: Path) -> MakeArchive:
    """Make a release as an archive, with its digest."""

    def make(
        release: int, *, slow_layers: int = 0, slow_above: float | None = None
    ) -> tuple[Path, ExampleBundle]:
        key = load_private_key(key_prefix.with_suffix(".key"))
        bundle = make_bundle(
            tmp_path / f"release-{release}",
            key,
            release=release,
            slow_layers=slow_layers,
            slow_above=slow_above,
        )
        packed = bundle.folder.with_suffix(".edgepack")
        pack(bundle.folder, packed)
        return packed, bundle

    return make


def start(fleet: FleetProcess, archive: Path, *options: str) -> str:
    done = edgepack(
        fleet,
        *("rollout", "start", str(archive), "--group", "cameras", "--waves", "1,100%"),
        *("--soak", "0.5", "--deadline", "400", "--first-look", "1", "--yes", "--json", *options),
    )
    assert done.returncode == 0, done.stderr
    name: str = json.loads(done.stdout)["rollout"]
    return name


def serves(fleet: FleetProcess) -> list[str]:
    models = (model for device in fleet.client.devices() for model in device.models)
    return sorted(model.active.version for model in models if model.active)


def measured(view: RolloutView) -> int:
    return sum(row.inferences for row in view.latency)


Known = Callable[[], FleetProcess]


@pytest.fixture
def known(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    applications: Applications,
    archive: MakeArchive,
    tmp_path: Path,
) -> FleetProcess:
    """Return a fleet of 3 cameras with release 1 and a known pace."""
    fleet: FleetProcess = serve("--broker", mosquitto.url, "--value-seconds", "0.5")
    start_cameras(fleet, start_agent, tmp_path, SETTINGS)
    packed, one = archive(1)
    first = fleet.roll_out(packed, to=CAMERAS, waves="100%", deadline_s=240.0)
    fleet.wait_for(first, "FINISHED")
    for device in CAMERA_NAMES:
        applications.start(tmp_path / device / "state")

    def is_known(device: str) -> bool:
        journal = tmp_path / device / "state" / JOURNAL_FILE
        if not journal.exists():
            return False
        pace = STORED.decode(journal.read_bytes()).value.paces.get(f"{one.ref.digest} cpu", Pace())
        return len(pace.intervals) > 4 and pace.latency.count >= 60

    wait_until(lambda: all(map(is_known, CAMERA_NAMES)), "each agent knows the pace")
    wait_until(lambda: measured(fleet.rollout(first)) >= 600, "the fleet knows latencies")
    return fleet


def test_a_slow_release_is_stopped_once_three_devices_went_back_from_it(
    known: FleetProcess, archive: MakeArchive
) -> None:
    packed = archive(2, slow_layers=SLOW_LAYERS)[0]
    slow = start(known, packed, "--on-breach", "abort")
    view = known.wait_for(slow, "PAUSED", "FINISHED", "ABORTED")
    assert view.state == "ABORTED", view.because
    assert view.counts == {"FAILED": 1, "WITHDRAWN": 2}
    (last,) = [part for part in view.assignments if part.state == "FAILED"]
    assert "times as long as with tiny 1.1.0" in last.because
    assert [one.chosen for one in view.set_aside] == [view.set_aside[1].wanted, last.device]
    reasons = [one.because for one in view.set_aside]
    assert [one for one in reasons if "times as long as with tiny 1.1.0" not in one] == []
    assert f"all 3 devices that tried it: {view.set_aside[0].wanted}, " in view.because
    known.wait_until(lambda: serves(known) == ["1.1.0"] * 3, "all devices went back")
    shown = edgepack(known, "rollout", "status", slow).stdout
    assert "stopped by gate failures" in shown
    assert "gates as measured at the decision" in shown


def test_a_good_release_reaches_all_others_when_one_odd_device_measured_a_slowdown(
    known: FleetProcess, archive: MakeArchive
) -> None:
    packed = archive(2, slow_layers=SLOW_LAYERS, slow_above=LIGHT)[0]
    good = start(known, packed, "--gate", "all=off", "--gate", "p95=1.9", "--on-breach", "abort")
    view = known.wait_for(good, "PAUSED", "FINISHED", "ABORTED")
    assert (view.state, view.counts) == ("FINISHED", {"COMMITTED": 2, "WITHDRAWN": 1}), view
    (aside,) = view.set_aside
    (odd,) = [part for part in view.assignments if part.state == "WITHDRAWN"]
    assert (aside.wanted, aside.wave) == (odd.device, 1)
    assert "times as long as with tiny 1.1.0" in aside.because
    assert serves(known) == ["1.1.0", "1.2.0", "1.2.0"]
    shown = " ".join(edgepack(known, "rollout", "status", good).stdout.split())
    assert f"{odd.device} alone measured a breach" in shown
    assert f"{aside.chosen} tried the release instead" in shown
    (act,) = known.client.audit(rollout=good, action="rollout.set_aside")
    assert act.numbers["wanted"] == odd.device
    board = Visitor(known.url).log_in((known.data / "token").read_text())
    for path in ("/", f"/rollouts/{good}"):
        page = board.get(path).text
        assert aside.chosen in page
        assert "times as long as with tiny 1.1.0" in page

    # A person offers it to that device again; the device decides by what it measures.
    assert edgepack(known, "rollout", "retry", good).returncode == 0
    view = known.wait_for(good, "PAUSED", "FINISHED", "ABORTED")
    assert odd.device in {part.device for part in view.assignments if part.state == "FAILED"}


def test_a_wave_that_measured_too_little_waits_for_a_person_and_says_so(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    archive: MakeArchive,
    tmp_path: Path,
) -> None:
    fleet = serve("--broker", mosquitto.url, "--value-seconds", "0.5")
    start_cameras(fleet, start_agent, tmp_path, SETTINGS)
    first = start(fleet, archive(1)[0])
    view = fleet.wait_for(first, "FINISHED")  # nothing ran before: nothing to compare
    assert view.counts == {"COMMITTED": 3}

    second = start(fleet, archive(2)[0])
    fleet.wait_until(
        lambda: fleet.rollout(second).waits_reason == "evidence", "it waits for evidence"
    )
    view = fleet.rollout(second)
    assert (view.state, view.wave) == ("RUNNING", 1)
    assert view.counts == {"COMMITTED": 1, "WAITING": 2}
    assert "too few measured p95: 0 of 1 device" in view.waits_for
    shown = " ".join(edgepack(fleet, "rollout", "status", second).stdout.split())
    assert "held: too few measured" in shown
    assert f"edgepack rollout resume {second}" in shown
    assert "--gate-evidence optional" in shown
    (hold,) = fleet.client.audit(rollout=second, action="rollout.hold")
    assert "too few measured" in hold.because
    done = edgepack(fleet, "rollout", "resume", second)
    assert done.returncode == 0, done.stderr
    assert fleet.wait_for(second, "FINISHED").counts == {"COMMITTED": 3}

    third = start(fleet, archive(3)[0], "--gate-evidence", "optional")
    assert fleet.wait_for(third, "FINISHED").counts == {"COMMITTED": 3}
    assert not fleet.client.audit(rollout=third, action="rollout.hold")
