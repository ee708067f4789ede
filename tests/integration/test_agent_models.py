"""Several models on a real agent: an application runs all models while all are swapped."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent import open_model
from edgepack.bundle.keys import PrivateKey
from edgepack.errors import BundleError
from edgepack.wire.orders import Desired, RunModel
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.bundles import WIDTH, ExampleBundle, expected_output, make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device
from tests.simulators.waiting import wait_until

FIRST = {"det": 100, "ocr": 200, "tiny": 300}
"""Each model's first release; a release gives its model's weights, so no two models are alike."""
ROUNDS = 6
LEAST_INFERENCES = 2_000
_PAUSE_S = 0.004
"""Between two inferences of a thread, so that the application leaves the agent a processor."""
MEMORY_BYTES = 5 * (2 * WIDTH * WIDTH * 4 + 2_000)
"""The three that serve, and two of the three that come: one of each round has to wait."""


@pytest.fixture
def device(tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys) -> Iterator[Device]:
    device = Device(
        tmp_path / "device", mosquitto_broker.url, release_keys[1], memory_bytes=MEMORY_BYTES
    )
    device.start()
    yield device
    if device.is_running:
        device.stop()


class Shop:
    """Makes releases of the models and offers all at once."""

    def __init__(self, folder: Path, key: PrivateKey, controller: Controller) -> None:
        self._folder, self._key, self._controller = folder, key, controller
        self.sequence = 0
        self.bundles: dict[str, ExampleBundle] = {}

    def offer(self, step: int) -> None:
        self.sequence += 1
        orders: dict[str, RunModel] = {}
        for name, first in FIRST.items():
            bundle = make_bundle(
                self._folder / f"{name}-{step}", self._key, name=name, release=first + step
            )
            self._controller.hold(bundle)
            self.bundles[name] = bundle
            orders[name] = bundle.order(self.sequence, soak_s=0.1)
        self._controller.offer(DEVICE, Desired(sequence=self.sequence, models=dict(orders)))

    def wait(self) -> None:
        for name in FIRST:
            done = self._controller.wait_for(
                lambda model: model.sequence == self.sequence and model.state == "COMMITTED",
                model=name,
            )
            assert done.active is not None
            assert done.active.bundle == self.bundles[name].ref


class Application:
    """A process with a thread for each model, with the expected answers of each release."""

    def __init__(self, state_dir: Path) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self.faults: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(name, state_dir)) for name in FIRST
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, name: str, state_dir: Path) -> None:
        x = np.random.default_rng(7).standard_normal((1, WIDTH)).astype(np.float32)
        releases = np.arange(FIRST[name], FIRST[name] + ROUNDS + 1)
        known = np.stack([expected_output(x, release) for release in releases.tolist()])
        with open_model(name, state_dir, threads=1, poll_s=0.02) as model:
            while not self._stop.wait(_PAUSE_S):
                try:
                    y = model.run({"x": x})["y"]
                except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure
                    self.faults.append(f"{name}: {error}")
                    continue
                fitting = releases[np.abs(known - y).max(axis=(1, 2)) < 1e-2].tolist()
                if len(fitting) == 1:
                    self.answers[name, fitting[0]] += 1
                else:
                    self.faults.append(f"{name}: an answer of release {fitting or 'none'}")
            self.faults += model.troubles

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.timeout(600)
def test_an_application_of_three_threads_sees_no_failed_and_no_mixed_inference_in_any_swap(
    tmp_path: Path, controller: Controller, device: Device, release_keys: Keys
) -> None:
    shop = Shop(tmp_path, release_keys[0], controller)
    shop.offer(0)
    shop.wait()
    application = Application(device.state_dir)
    try:
        for step in range(1, ROUNDS + 1):
            shop.offer(step)
            shop.wait()
        answers = application.answers
        wait_until(
            lambda: (
                answers.total() >= LEAST_INFERENCES
                and all(answers[name, first + ROUNDS] for name, first in FIRST.items())
            ),
            lambda: answers,
        )
    finally:
        application.close()
    assert application.faults == []
    assert {name for name, _ in application.answers} == set(FIRST)
    assert "no memory" not in device.said()
    assert "Traceback" not in device.said()


def test_weights_that_changed_on_the_disk_are_refused_and_then_mended_by_the_agent(
    tmp_path: Path, controller: Controller, device: Device, release_keys: Keys
) -> None:
    shop = Shop(tmp_path, release_keys[0], controller)
    shop.offer(0)
    shop.wait()
    slot = device.state_dir / "slots" / shop.bundles["ocr"].ref.digest
    path = slot / "model" / "cpu" / "model.onnx"
    good = path.read_bytes()
    path.write_bytes(good[:300_000] + bytes(1000) + good[301_000:])
    with pytest.raises(BundleError, match=r"model\.onnx' is not what was installed"):
        open_model("ocr", device.state_dir)

    def is_mended() -> bool:
        return path.read_bytes() == good

    wait_until(is_mended, "the agent fetches the changed chunks again")
    controller.wait_for(lambda model: model.state == "COMMITTED", model="ocr")
    with open_model("ocr", device.state_dir) as model:
        assert model.bundle == shop.bundles["ocr"].ref
    assert any(
        event.kind == "warning" and "is not what was installed" in event.because
        for event in controller.events
    )
