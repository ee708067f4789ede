"""Applications on a device with a real agent, broker and updates: forked workers, and sessions."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent import Tensor, open_model
from edgepack.agent.serving.model_session import MAX_HOLD_S
from edgepack.agent.state.slots import slot_folder
from edgepack.errors import DeviceError
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.bundles import WIDTH, ExampleBundle, expected_output, make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device
from tests.simulators.waiting import PATIENCE_S, wait_until

WORKERS = 4
SWAPS = 3


@pytest.fixture
def device(tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys) -> Iterator[Device]:
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    device.start()
    yield device
    if device.is_running:
        device.stop()


Roll = Callable[[int], ExampleBundle]


@pytest.fixture
def roll(tmp_path: Path, controller: Controller, device: Device, release_keys: Keys) -> Roll:
    """Bring a release with that number to the device, and wait for the commit."""

    def bring(number: int) -> ExampleBundle:
        bundle = make_bundle(tmp_path / f"release-{number}", release_keys[0], release=number)
        controller.hold(bundle)
        controller.offer(DEVICE, bundle.desired(number, soak_s=0.1))
        controller.wait_for(lambda it: it.sequence == number and it.state == "COMMITTED")
        return bundle

    return bring


def test_a_release_that_takes_other_inputs_than_the_application_gives_is_left(
    device: Device, controller: Controller, roll: Roll, release_keys: Keys, tmp_path: Path
) -> None:
    """It is right on its golden samples, and of no use to the application that is here."""
    first = roll(1)
    renamed = make_bundle(tmp_path / "2", release_keys[0], release=2, input_name="image")
    x = np.zeros((1, WIDTH), np.float32)
    rejected: list[str] = []
    with open_model("tiny", device.state_dir, threads=1, poll_s=0.02) as model:

        def has_left() -> bool:
            try:
                model.run({"x": x})
            except ValueError as error:
                rejected.append(str(error))
            said = controller.last()
            told = said.models.get("tiny") if said else None
            return told is not None and (told.sequence, told.state) == (2, "ROLLED_BACK")

        with pytest.raises(ValueError, match="the model's inputs are x"):
            model.run({"other": x})  # A mistake of the application: no release is to blame.
        controller.hold(renamed)
        controller.offer(DEVICE, renamed.desired(2, soak_s=60.0))
        wait_until(has_left, "the release is left")
        assert "the model's inputs are image" in rejected[0]
        wait_until(lambda: model.bundle == first.ref, "release 1 serves again")
        model.run({"x": x})

    def failing() -> set[str]:
        return {it.digest for it in controller.telemetry if it.failures}

    wait_until(failing, "the failed inferences are reported")
    assert failing() == {renamed.ref.digest}


PREFORKING = """
import collections, json, os, sys, time
import numpy as np
from edgepack.agent import Tensor, open_model
from tests.simulators.bundles import WIDTH, expected_output

state_dir, workers, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
x = np.random.default_rng(7).standard_normal((1, WIDTH)).astype(np.float32)
known = {release: expected_output(x, release) for release in range(1, last + 1)}
counts = collections.Counter()

def infer(model):
    y = model.run({"x": x})["y"]
    (release,) = [it for it, want in known.items() if np.allclose(y, want, atol=1e-4)]
    counts[release] += 1
    return release

def work(model):
    until, seen = time.monotonic() + 300, 0
    while seen < 20 and time.monotonic() < until:
        seen += infer(model) == last
        time.sleep(0.005)
    model.close()
    os.write(1, (json.dumps(counts) + "\\n").encode())

with open_model("tiny", state_dir, threads=2, poll_s=0.02) as model:
    for _ in range(100):
        infer(model)
    children = []
    for _ in range(workers):
        pid = os.fork()
        if not pid:
            counts.clear()
            work(model)
            os._exit(0)
        children.append(pid)
    print("forked", file=sys.stderr, flush=True)
    work(model)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
"""


def test_forked_workers_follow_updates_and_each_inference_is_reported_once(
    device: Device, controller: Controller, roll: Roll
) -> None:
    bundles = {1: roll(1)}
    last = 1 + SWAPS
    application = subprocess.Popen(
        [sys.executable, "-c", PREFORKING, str(device.state_dir), str(WORKERS), str(last)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert application.stderr is not None
    assert "forked" in application.stderr.readline()
    for number in range(2, last + 1):
        bundles[number] = roll(number)
    said, errors = application.communicate(timeout=400)
    assert application.returncode == 0, errors
    told = [
        Counter({int(k): v for k, v in json.loads(line).items()}) for line in said.split("\n")[:-1]
    ]
    assert len(told) == WORKERS + 1
    assert all(counts[last] == 20 for counts in told), told
    real = sum(told, Counter[int]())

    def reported() -> Counter[int]:
        releases = {bundle.ref.digest: number for number, bundle in bundles.items()}
        found: Counter[int] = Counter()
        for window in tuple(controller.telemetry):
            found[releases[window.digest]] += window.latency.count
        return found

    wait_until(lambda: reported().total() >= real.total(), "all inferences are reported")
    spool = device.state_dir / "latency"
    wait_until(lambda: not list(spool.glob("*.json")), "the agent has read all files")
    assert reported() == real


def test_every_form_of_a_call_follows_an_update_and_is_reported(
    device: Device, controller: Controller, roll: Roll
) -> None:
    """Bound arrays, a batch, an array without a name, and a coroutine."""
    x = np.random.default_rng(4).standard_normal((1, WIDTH)).astype(np.float32)
    ran: Counter[str] = Counter()
    bundles = [roll(1)]
    with open_model("tiny", device.state_dir, threads=1, poll_s=0.02) as model:
        bound = model.bind({"x": x.copy()})
        for number in (1, 2, 3):
            if number > 1:
                bundles.append(roll(number))
                wait_until(lambda: model.bundle.release == number, "it follows")  # noqa: B023
            want = expected_output(x, number)
            found = [
                bound.run()["y"],
                *(outputs["y"] for outputs in model.run_batch([{"x": x}, {"x": x}])),
                model.run(x)["y"],
                asyncio.run(model.run_async({"x": x}))["y"],
            ]
            ran[bundles[-1].ref.digest] = len(found)
            for y in found:
                assert np.allclose(y, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())

    def reported() -> Counter[str]:
        found: Counter[str] = Counter()
        for window in tuple(controller.telemetry):
            found[window.digest] += window.latency.count
        return found

    wait_until(lambda: reported().total() >= ran.total(), "all inferences are reported")
    assert reported() == ran


def test_session_keeps_its_release_for_a_recurrent_loop_through_updates_under_load(
    device: Device, roll: Roll
) -> None:
    """The state goes from each inference to the next: a step of another release would change the
    state.
    """
    first = roll(1)
    start = np.random.default_rng(3).standard_normal((1, WIDTH)).astype(np.float32)
    steps, last = 12, 5
    expected: dict[int, np.ndarray] = {}
    for release in range(1, last + 1):
        state = start
        for _ in range(steps):
            state = expected_output(state, release)
        expected[release] = state
    ran: Counter[int] = Counter()
    faults: list[str] = []
    stopping = threading.Event()
    with open_model("tiny", device.state_dir, threads=1, poll_s=0.02) as model:

        def loop() -> None:
            try:
                while not stopping.is_set():
                    with model.session() as session:
                        state: Tensor = start
                        for _ in range(steps):
                            state = session.run({"x": state})["y"]
                            stopping.wait(0.002)
                        ran[session.bundle.release] += 1
                    want = expected[session.bundle.release]
                    if not np.allclose(state, want, rtol=1e-3, atol=1e-4 * np.abs(want).max()):
                        faults.append(f"a session of {session.bundle.version} mixed releases")
            except BaseException as error:
                faults.append(repr(error))
                raise

        threads = [threading.Thread(target=loop) for _ in range(3)]
        for thread in threads:
            thread.start()
        long = model.session()
        for number in range(2, last + 1):
            roll(number)
            wait_until(lambda: model.bundle.release == number, "the application follows")  # noqa: B023
        slot = slot_folder(device.state_dir, first.ref.digest)
        assert slot.is_dir(), "the agent removed a slot that a session holds"
        assert long.bundle == first.ref
        assert np.allclose(long.run({"x": start})["y"], expected_output(start, 1), atol=1e-4)
        long.close()
        wait_until(lambda: not slot.exists(), "the agent removes the slot once nobody holds it")
        wait_until(lambda: ran[last] > 3, "sessions begin on the newest release")
        stopping.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert faults == []
    assert len(ran) > 1, "sessions ran on several releases"


def test_session_ends_a_stated_time_after_a_newer_release_serves(
    device: Device, roll: Roll
) -> None:
    first = roll(1)
    x = np.zeros((1, WIDTH), np.float32)
    with open_model("tiny", device.state_dir, threads=1, poll_s=0.02) as model:
        session = model.session(hold_s=0.1)
        session.run({"x": x})
        other = model.session(hold_s=0.1)
        other.close()
        with pytest.raises(ValueError, match="the session is closed"):
            other.run({"x": x})
        second = roll(2)

        reasons: list[str] = []

        def is_over() -> bool:
            try:
                session.run({"x": x})
            except DeviceError as error:
                reasons.append(str(error))
            return bool(reasons)

        wait_until(is_over, "the session's time is over")
        assert f"version {second.ref.version} serves" in reasons[0]
        assert "begin a new session" in reasons[0]
        assert session.bundle == first.ref
        with model.session() as next_one:
            assert next_one.bundle == second.ref
        for hold_s in (-1.0, MAX_HOLD_S + 1, float("nan")):
            with pytest.raises(ValueError, match="hold_s is 0 to 86400 seconds"):
                model.session(hold_s=hold_s)
    roll(3)
    roll(4)
    wait_until(
        lambda: not slot_folder(device.state_dir, first.ref.digest).exists(), "nothing is left held"
    )


PRINTING_MODULES = """
import atexit, sys
from edgepack.agent.cli import main
atexit.register(lambda: print(*sys.modules))
main()
"""


def test_an_agent_that_probes_and_serves_loads_no_arrays_and_no_runtime(
    device: Device, controller: Controller, roll: Roll
) -> None:
    device.stop()
    command = [sys.executable, "-c", PRINTING_MODULES, "run", "--config", str(device.config)]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        roll(1)
        with open_model("tiny", device.state_dir) as model:
            model.run({"x": np.zeros((1, WIDTH), np.float32)})
            roll(2)
    finally:
        agent.terminate()
        loaded = set(agent.communicate(timeout=60)[0].split())
    assert "edgepack.agent.update.watching" in loaded
    heavy = {"numpy", "onnxruntime", "edgepack.tasks.table", "tarfile", "difflib", "urllib3"}
    assert loaded & heavy == set()
