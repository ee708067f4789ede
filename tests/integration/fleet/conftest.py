"""A fleet in production form: `edgepack fleet serve` as a process, real brokers, real bundles."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from playwright.sync_api import Browser, sync_playwright

from edgepack.bundle.archive import pack
from edgepack.bundle.chunks import entry
from edgepack.bundle.golden import Golden, Tensor, write_golden
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from edgepack.bundle.manifest import BundleFacts, Manifest, encode_manifest
from edgepack.bundle.signature import sign_folder
from edgepack.errors import FleetError
from edgepack.fleet.client.connection import Connection, connect
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.documents.fleet import FleetInfo
from edgepack.fleet.documents.rollouts import RolloutSettings, RolloutView, Selector
from edgepack.fleet.simulation.simulate import SimulateSettings, simulate
from tests.integration.fleet.cluster import Cluster, start_cluster
from tests.integration.fleet.postgresql import INSTALLED, PostgreSQL
from tests.simulators import warm_programs
from tests.simulators.bundles import make_bundle as make_real_bundle
from tests.simulators.manifests import DIGEST, make_variant
from tests.simulators.ports import free_port
from tests.simulators.waiting import wait_until

MOSQUITTO = "/usr/sbin/mosquitto"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIMULATED = Selector(kind="group", group="simulated")
CAMERAS = Selector(kind="group", group="cameras")
StartAgent = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="session")
def key_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("keys") / "release"
    write_key_pair(generate_key(), prefix)
    return prefix


@pytest.fixture(scope="session")
def make_bundle(tmp_path_factory: pytest.TempPathFactory, key_prefix: Path) -> Callable[..., Path]:
    """Make signed archives: a version, and a model of random bytes of a size."""

    def make(version: str = "1.0.0", release: int = 1, size_bytes: int = 300_000) -> Path:
        root = tmp_path_factory.mktemp("bundle")
        folder = root / f"digits-{version}"
        (folder / "model" / "cpu").mkdir(parents=True)
        (folder / "golden").mkdir()
        content = np.random.default_rng(release).bytes(size_bytes)
        (folder / "model" / "cpu" / "model.onnx").write_bytes(content)
        sample: dict[str, Tensor] = {"x": np.zeros((1, 2), np.float32)}
        write_golden(
            folder / "golden" / "golden.npz",
            Golden(inputs=(sample,), outputs=({"y": sample["x"]},)),
        )
        variant = make_variant(files=(entry(folder, "model/cpu/model.onnx"),))
        facts = BundleFacts(
            name="digits",
            version=version,
            release=release,
            source_sha256=DIGEST,
            files=(entry(folder, "golden/golden.npz"),),
        )
        manifest = Manifest(facts=facts, variants=(variant,))
        (folder / "manifest.json").write_bytes(encode_manifest(manifest))
        sign_folder(folder, load_private_key(key_prefix.with_suffix(".key")))
        archive = root / f"digits-{version}.edgepack"
        pack(folder, archive)
        return archive

    return make


def aged(program: str, age: str) -> list[str]:
    """Return the command that starts a program, if `newer` in the next minor version."""
    words = ["tests.simulators.newer_minor", program] if age else [program]
    return [sys.executable, "-m", *words]


class FleetProcess:
    """`edgepack fleet serve` as a process that can be killed and started again."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.arguments = arguments
        self.log = data.parent / "serve.log"
        self.age = ""
        """`newer` for the next minor version, see `tests.simulators.newer_minor`."""
        self.before: tuple[str, ...] = ()
        """A program that starts it, such as `prlimit`, with its arguments."""
        self.process: subprocess.Popen[str] | None = None
        self.broker: subprocess.Popen[bytes] | None = None
        self.broker_folder = data

    def start(self) -> "FleetProcess":
        command = [*self.before, *aged("edgepack.cli", self.age), "fleet", "serve", "-v"]
        command += ["--data", str(self.data), "--port", str(self.port), *self.arguments]
        with self.log.open("a") as log:
            self.process = warm_programs.Popen(command, stderr=log, stdout=log, text=True)
        wait_until(self._answers, "the fleet answers", 0.05)
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.info().is_connected
        except FleetError:
            return False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send_signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(400)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.send_signal(number)
        assert self.process is not None
        return self.process.wait(400)

    @property
    def client(self) -> FleetClient:
        return FleetClient(self.url, data=self.data)

    @property
    def connection(self) -> Connection:
        return connect(self.url, self.data, None)

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        wait_until(is_so, what, 0.05)

    def info(self) -> FleetInfo:
        return self.client.info()

    def rollout(self, name: str) -> RolloutView:
        return self.client.rollout(name)

    def roll_out(self, archive: Path, to: Selector = SIMULATED, **settings: object) -> str:
        asked: dict[str, object] = {
            "waves": "1,100%",
            "soak_s": 0.2,
            "deadline_s": 150.0,  # a busy machine is slow, not silent
            "gate_evidence": "optional",  # most tests have no applications
            **settings,
        }
        chosen = RolloutSettings(**asked)  # type: ignore[arg-type]
        return self.client.start_rollout(self.client.publish(archive), to, chosen).rollout

    def wait_for(self, name: str, *states: str) -> RolloutView:
        wait_until(
            lambda: self.rollout(name).state in states, f"{name} is {'/'.join(states)}", 0.05
        )
        return self.rollout(name)


class Simulation:
    """Simulated devices on a thread."""

    def __init__(self, fleet: FleetProcess, **settings: object) -> None:
        asked: dict[str, object] = {"count": 4, "group": "simulated", "prefix": "sim", **settings}
        self._settings = SimulateSettings(**asked)  # type: ignore[arg-type]
        self._fleet = fleet
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.states: dict[str, int] = {}

    def _run(self) -> None:
        def show(states: dict[str, int]) -> None:
            self.states = states

        simulate(self._fleet.client, self._settings, stopping=self._stopping, for_s=None, show=show)

    def start(self) -> "Simulation":
        before = self._fleet.info().online
        self._thread.start()
        count = self._settings.count
        wait_until(lambda: self._fleet.info().online >= before + count, "devices are online")
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(400)
        assert not self._thread.is_alive()


Serve = Callable[..., FleetProcess]
Simulate = Callable[..., Simulation]
MakeBundle = Callable[..., Path]


@pytest.fixture
def serve(tmp_path: Path, key_prefix: Path) -> Iterator[Serve]:
    """Start fleets, and end all afterwards."""
    fleets: list[FleetProcess] = []

    def start(
        *arguments: str, url_scheme: str = "http", port: int = 0, before: tuple[str, ...] = ()
    ) -> FleetProcess:
        if "--broker" not in arguments:
            arguments = (*arguments, "--broker-port", str(free_port()))
        trust = ("--trust", str(key_prefix.with_suffix(".pub")))
        fleet = FleetProcess(tmp_path / "fleet", *trust, *arguments)
        fleet.before = before
        if port:
            fleet.port, fleet.url = port, f"http://127.0.0.1:{port}"
        fleet.url = fleet.url.replace("http", url_scheme, 1)
        fleets.append(fleet)
        return fleet.start()

    yield start
    for fleet in fleets:
        if fleet.process is not None and fleet.process.poll() is None:
            fleet.stop()


@pytest.fixture
def simulation() -> Iterator[Simulate]:
    """Start simulated devices, and end all afterwards."""
    running: list[Simulation] = []

    def start(fleet: FleetProcess, **settings: object) -> Simulation:
        running.append(Simulation(fleet, **settings))
        return running[-1].start()

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[StartAgent]:
    """Enrol a device, the first time, and run its agent."""
    agents: list[subprocess.Popen[bytes]] = []

    def start(
        fleet: Any, device: str, age: str = "", python: Path | None = None
    ) -> subprocess.Popen[bytes]:
        folder = tmp_path / device
        if not folder.exists():
            fleet.client.enroll(device, group="cameras", folder=folder, state_dir=folder / "state")
        command = [*aged("edgepack.agent.cli", age), "run"]
        if python is not None:
            command[0] = str(python)
        with (folder / "agent.log").open("a") as log:
            agent = warm_programs.Popen(
                [*command, "--config", str(folder / "agent.toml")], stdout=log, stderr=log
            )
        agents.append(agent)
        return agent

    yield start
    for agent in agents:
        agent.terminate()
    for agent in agents:
        agent.wait(400)


@pytest.fixture
def release(tmp_path: Path, key_prefix: Path) -> Callable[..., Path]:
    """Make real bundles with a runnable model, as archives."""

    def make(number: int, *, is_wrong: bool = False) -> Path:
        folder = tmp_path / f"release-{number}"
        key = load_private_key(key_prefix.with_suffix(".key"))
        make_real_bundle(folder, key, release=number, is_wrong=is_wrong)
        archive = tmp_path / f"release-{number}.edgepack"
        pack(folder, archive)
        return archive

    return make


class Mosquitto:
    """A real mosquitto without access rules."""

    def __init__(self, folder: Path, *extra: str) -> None:
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        lines = [f"listener {self.port} 127.0.0.1", *(extra or ("allow_anonymous true",))]
        self.config = folder / "mosquitto.conf"
        self.config.write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Mosquitto":
        self.process = run_mosquitto(self.config, self.port)
        return self

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(400)


def run_mosquitto(config: Path, port: int) -> subprocess.Popen[bytes]:
    if not os.access(MOSQUITTO, os.X_OK):
        pytest.skip("mosquitto is not installed (Debian package mosquitto)")
    process = warm_programs.Popen(
        [MOSQUITTO, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def listens() -> bool:
        assert process.poll() is None, "mosquitto ended"
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            return False
        return True

    wait_until(listens, "mosquitto listens")
    return process


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    quiet = ("background-networking", "component-update", "sync", "gpu", "quic")
    options = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield started
        started.close()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    if not INSTALLED:
        pytest.skip("PostgreSQL is not installed (Debian package postgresql)")
    server = PostgreSQL(free_port()).start()
    yield server
    server.remove()


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path).start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def ejabberd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("ejabberd"))
    yield cluster
    cluster.stop()


SMALL, GROWN, CLUSTER = "SQLite, embedded broker", "PostgreSQL, mosquitto", "PostgreSQL, ejabberd"
on_all = pytest.mark.parametrize("begin", [SMALL, GROWN, CLUSTER], indirect=True)


@pytest.fixture(params=[SMALL, CLUSTER])
def begin(
    request: pytest.FixtureRequest, serve: Serve, tmp_path: Path
) -> Callable[[], FleetProcess]:
    """Start a small or a grown fleet."""
    if request.param == SMALL:
        return serve
    database = request.getfixturevalue("postgresql").empty_database()
    if request.param == GROWN:
        broker = request.getfixturevalue("mosquitto").url
    else:
        broker = request.getfixturevalue("ejabberd").adopt(tmp_path / "fleet")
    return lambda: serve("--database", database, "--broker", broker)


class TlsBroker(NamedTuple):
    """A mosquitto that was set up by `edgepack fleet broker-config`."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]


@pytest.fixture
def tls_broker(tmp_path: Path) -> Iterator[TlsBroker]:
    port = free_port()
    folder = tmp_path / "broker"
    done = warm_programs.run(
        [
            *(sys.executable, "-m", "edgepack.cli", "fleet", "broker-config", "--json"),
            *("--data", str(tmp_path / "fleet"), "--host", "localhost", "--host", "127.0.0.1"),
            *("--port", str(port), "-o", str(folder)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    written = json.loads(done.stdout)
    assert written["broker"] == f"mqtts://localhost:{port}"
    config = Path(written["config"])
    config.write_text(config.read_text() + f"user {os.environ.get('USER', 'root')}\n")
    broker = run_mosquitto(config, port)
    yield TlsBroker(written["broker"], folder, broker)
    broker.terminate()
    broker.wait(400)


@pytest.fixture
def tls_fleet(serve: Serve, tls_broker: TlsBroker) -> FleetProcess:
    """Start a fleet on a mosquitto with TLS."""
    fleet = serve("--broker", tls_broker.url)
    fleet.broker, fleet.broker_folder = tls_broker.process, tls_broker.folder
    return fleet


def edgepack(fleet: FleetProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    place = ("--data", str(fleet.data), "--url", fleet.url)
    return warm_programs.run(
        [sys.executable, "-m", "edgepack.cli", *arguments, *place],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
