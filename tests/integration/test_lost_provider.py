"""An agent that starts again without the provider that its model ran on.

The device has ONNX Runtime with the QNN plug-in first, and later an older release without the
plug-in.
"""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.agent.state.pointer import ActivePointer, read_pointer
from edgepack.agent.update.journal import Journal, read_journal
from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.broker import Broker
from tests.simulators.bundles import make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device, running, wait_for_line
from tests.simulators.waiting import PATIENCE_S, wait_until
from tests.unit.packager_io.models import save, small_cnn

ROOT = Path(__file__).parents[2]
OTHER = ROOT / ".venv-openvino" / "bin" / "python"
QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"

SERVE = """
import sys
import numpy as np
from edgepack.agent import open_model
with open_model("small") as model:
    outputs = model.run({"images": np.zeros((1, 3, 8, 8), np.float32)})
    print(model.choice.provider, *(value.shape for value in outputs.values()))
"""


def build(folder: Path, version: str, *profiles: str) -> Path:
    bundle = folder / f"small-{version}.edgepack"
    done = warm_programs.run(
        [
            *(sys.executable, "-m", "edgepack.cli", "build", str(folder / "small.onnx")),
            *(word for name in profiles for word in ("--profile", name)),
            *("--calibration", str(folder / "samples.npz"), "--key", str(folder / "release.key")),
            *("--allow-degraded", "-o", str(bundle)),
        ],
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    return bundle


@pytest.fixture(scope="module")
def bundles(material: Path) -> dict[str, Path]:
    """Make bundles with a variant for the CPU, for QNN, and for both; the QNN bundles are newer."""
    save(small_cnn(batch=1), material / "small.onnx")
    return {
        "cpu": build(material, "1.1.0", "fp32"),
        "qnn": build(material, "1.2.0", "qnn-htp"),
        "both": build(material, "1.3.0", "qnn-htp", "fp32"),
    }


class Board:
    """A device with an exchanged Python environment.

    Args:
        folder: Is made.
        key: The trusted public key.
    """

    def __init__(self, folder: Path, key: Path) -> None:
        folder.mkdir()
        self.state = folder / "state"
        self.log = folder / "agent.log"
        self._config = folder / "agent.toml"
        self._config.write_text(
            'device = "cam-1"\nstate_dir = "state"\n[broker]\nurl = "mqtt://127.0.0.1:1"\n'
            f'[trust]\nkeys = ["{key}"]\nallow_degraded_unsafe = true\n'
            f'[providers]\nwanted = "{QNN}"\nallow_simulator = true\n'
            "[limits]\ndisk_reserve_bytes = 1\n"
        )
        self.has_qnn = True
        self._agent: subprocess.Popen[bytes] | None = None

    @property
    def _python(self) -> str:
        return sys.executable if self.has_qnn else str(OTHER)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return warm_programs.run(
            [self._python, *words], capture_output=True, text=True, timeout=550
        )

    def install(self, bundle: Path) -> subprocess.CompletedProcess[str]:
        words = ("install", bundle, "--config", self._config, "--soak", "0")
        return self.run("-m", "edgepack.agent.cli", *words)

    def serve(self) -> subprocess.CompletedProcess[str]:
        return self.run("-c", SERVE)

    def start(self) -> None:
        words = ("-m", "edgepack.agent.cli", "run", "--config", str(self._config))
        with self.log.open("ab") as log:
            self._agent = warm_programs.Popen([self._python, *words], stdout=log, stderr=log)

    def stop(self) -> None:
        if self._agent is not None:
            self._agent.terminate()
            assert self._agent.wait(PATIENCE_S) == 0, self.log.read_text()
            self._agent = None

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        agent = self._agent
        assert agent is not None
        wait_until(lambda: agent.poll() is not None or is_so(), self.log.read_text)
        assert agent.poll() is None, self.log.read_text()

    @property
    def pointer(self) -> ActivePointer | None:
        return read_pointer(self.state, "small")

    @property
    def journal(self) -> Journal:
        journal = read_journal(self.state, "small")
        assert journal is not None
        return journal

    def provider(self) -> str:
        return self.pointer.choice.provider if self.pointer else ""


@pytest.fixture
def board(tmp_path: Path, material: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    if not OTHER.exists():
        pytest.skip("there is no environment .venv-openvino (make test makes it)")
    made = Board(tmp_path / "board", material / "release.pub")
    monkeypatch.setenv("EDGEPACK_STATE_DIR", str(made.state))
    yield made
    made.stop()


def test_an_agent_leaves_a_provider_that_is_gone_and_takes_it_when_it_is_back(
    board: Board, bundles: dict[str, Path]
) -> None:
    done = board.install(bundles["both"])
    assert done.returncode == 0, done.stderr
    assert board.provider() == QNN
    assert QNN in board.serve().stdout

    board.has_qnn = False
    assert board.serve().returncode != 0, "an application cannot open it"
    board.start()
    board.wait_until(lambda: board.provider() == CPU)
    board.stop()
    said = board.serve()
    assert said.stdout.startswith(CPU), said.stderr
    assert board.pointer is not None
    choice = board.pointer.choice
    assert (choice.wanted, choice.is_fallback) == (QNN, True)
    assert "not available" in choice.because
    assert board.pointer.committed
    assert board.journal.state == "COMMITTED"
    assert "onnxruntime: 1.24" in board.log.read_text(), "the log names what changed"

    board.has_qnn = True
    board.start()
    board.wait_until(lambda: board.provider() == QNN)
    board.stop()
    assert QNN in board.serve().stdout


def test_the_same_release_can_be_installed_where_its_provider_is_gone(
    board: Board, bundles: dict[str, Path]
) -> None:
    assert board.install(bundles["both"]).returncode == 0
    board.has_qnn = False
    done = board.install(bundles["both"])
    assert done.returncode == 0, done.stderr
    assert board.provider() == CPU
    assert "fallback  QNNExecutionProvider was wanted" in done.stdout
    assert board.serve().stdout.startswith(CPU)


def test_the_release_before_serves_where_no_variant_of_the_newest_works(
    board: Board, bundles: dict[str, Path]
) -> None:
    assert board.install(bundles["cpu"]).returncode == 0
    assert board.install(bundles["qnn"]).returncode == 0
    assert board.provider() == QNN
    board.has_qnn = False
    board.start()
    board.wait_until(lambda: board.journal.state == "ROLLED_BACK")
    board.stop()
    assert board.serve().stdout.startswith(CPU)
    assert board.pointer is not None
    assert board.pointer.bundle.version == "1.1.0"
    assert "1.1.0 serves again: 1.2.0 does not work here any more" in board.journal.because

    done = board.install(bundles["qnn"])
    assert done.returncode == 1
    assert "serves already" not in done.stderr
    assert "no variant fits this device" in done.stderr
    assert "small-1.1.0 keeps serving" in done.stderr
    assert board.serve().stdout.startswith(CPU)


def test_that_nothing_serves_is_reported_until_the_provider_is_back(
    board: Board, bundles: dict[str, Path]
) -> None:
    assert board.install(bundles["qnn"]).returncode == 0
    board.has_qnn = False
    for starts in (1, 2):  # a second start finds the same
        board.start()
        board.wait_until(lambda: board.journal.state == "ROLLED_BACK")
        board.wait_until(
            lambda starts=starts: board.log.read_text().count("cannot reach the broker") == starts  # type: ignore[misc]
        )
        board.stop()
        assert board.pointer is None
        status = board.run("-m", "edgepack.agent.cli", "status", "--state-dir", board.state)
        assert "active    nothing" in status.stdout
        assert "nothing serves: 1.2.0 does not work here any more" in status.stdout
    done = board.install(bundles["qnn"])
    assert done.returncode == 1
    assert "serves already" not in done.stderr
    assert "no release of it serves" in done.stderr

    board.has_qnn = True
    board.start()
    board.wait_until(lambda: board.provider() == QNN)
    board.stop()
    status = board.run("-m", "edgepack.agent.cli", "status", "--state-dir", board.state, "--json")
    assert json.loads(status.stdout)["models"]["small"]["active"]["committed"]
    assert QNN in board.serve().stdout


class Environment:
    """A Python environment with the packages of this environment, without ONNX Runtime at first."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        self._packages = Path(sysconfig.get_path("purelib"))
        self._own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        self._link(lambda name: not name.startswith("onnxruntime"))

    def add_runtime(self) -> None:
        self._link(lambda name: name.startswith("onnxruntime"))

    def _link(self, is_chosen: Callable[[str], bool]) -> None:
        for package in filter(lambda path: is_chosen(path.name), self._packages.iterdir()):
            (self._own / package.name).symlink_to(package)


def test_an_agent_without_any_runtime_stays_connected_and_continues_when_it_is_back(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys
) -> None:
    key, public = release_keys
    one, two = (make_bundle(tmp_path / f"tiny-{n}", key, release=n) for n in (1, 2))
    device = Device(tmp_path / "device", mosquitto_broker.url, public)
    bare = Environment(tmp_path / "bare")
    controller = Controller(mosquitto_broker.port)
    controller.hold(one)
    controller.hold(two)

    def warnings() -> list[str]:
        last = controller.last()
        assert last is not None
        return [text for text in last.warnings if "no model can run" in text]

    try:
        with running(device):
            controller.offer(DEVICE, one.desired(1))
            controller.wait_for(lambda model: model.state == "COMMITTED")
            assert device.stop() == 0

        device.python = bare.python
        with running(device):
            wait_for_line(device, "no execution provider is installed, so no model can run")
            controller.wait_for(lambda _: bool(warnings()))
            assert warnings() == [
                "no execution provider is installed, so no model can run "
                "(onnxruntime is not installed: pip install 'edgepack[cpu]')"
            ]
            controller.offer(DEVICE, two.desired(2))
            said = controller.wait_for(lambda model: model.state == "REJECTED")
            assert "onnxruntime is not installed" in said.because
            assert said.active is not None
            assert said.active.bundle == one.ref, "what serves stays as it is"
            assert device.said().count("no execution provider is installed") == 1

            bare.add_runtime()
            wait_for_line(device, "an execution provider is usable again")
            controller.wait_for(lambda _: not warnings())
            controller.offer(DEVICE, two.desired(3))
            controller.wait_for(lambda model: model.state == "COMMITTED" and model.sequence == 3)
            assert device.stop() == 0
    finally:
        controller.close()
