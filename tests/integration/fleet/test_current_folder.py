"""Every command runs in a folder full of traps: Python files named like imported modules."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest

from edgepack.agent.cli import cli as agent
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.cli import cli as host
from edgepack.python_child import python_command
from tests.simulators import warm_programs
from tests.simulators.ports import free_port
from tests.simulators.waiting import wait_until
from tests.simulators.web_ways import registry
from tests.unit.packager_io.models import save, small_cnn, write_stack

ROOT = Path(__file__).parents[3]
OLDEST = ROOT / ".venv-oldest" / "bin" / "python"
SECRETS = {
    "EDGEPACK_PKCS11_PIN": "1234",
    "EDGEPACK_REGISTRY_PASSWORD": "registry-password",
    "HF_TOKEN": "a-token",
}


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield every command, without groups that only contain other commands."""
    if not isinstance(command, click.Group):
        yield path
        return
    if command.invoke_without_command:
        yield path
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, *path, name)


ALL_COMMANDS = {*commands(host, "edgepack"), *commands(agent, "edgepack-agent")}


class Traps:
    """A folder in which a module that is imported leaves a mark.

    Args:
        folder: Parent of the folder and of the marks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._marks = folder / "here", folder / "marks"
        self._marks.mkdir(parents=True)
        (self.folder / "edgepack" / "agent").mkdir(parents=True)
        modules = {*sys.stdlib_module_names, *packages_distributions(), "sitecustomize"}
        for name in sorted(name for name in modules if name.isidentifier()):
            self._set(name, self.folder / f"{name}.py")
        self._set("edgepack.agent", self.folder / "edgepack" / "agent" / "__init__.py")
        self.ran: set[tuple[str, ...]] = set()

    def _set(self, name: str, path: Path) -> None:
        path.write_text(f"open({str(self._marks / name)!r}, 'w').close()\n")

    def sprung(self) -> list[str]:
        """Return the names of the modules that were imported from the folder."""
        return sorted(path.name for path in self._marks.iterdir())

    def words(self, *words: str | Path) -> list[str]:
        """Return a console script's command line; its command counts as run."""
        shown = tuple(map(str, words))
        self.ran.add(
            max((known for known in ALL_COMMANDS if shown[: len(known)] == known), key=len)
        )
        return [str(Path(sys.executable).with_name(shown[0])), *shown[1:]]

    def environment(self, data: Path) -> dict[str, str]:
        return {
            **os.environ,
            **SECRETS,
            "EDGEPACK_FLEET_DATA": str(data),
            "EDGEPACK_AGENT_CONFIG": str(data.parent / "cam-1" / "agent.toml"),
        }


class User:
    """A user who runs commands in the folder with the traps.

    Args:
        traps: The folder.
        data: The fleet's folder.
    """

    def __init__(self, traps: Traps, data: Path) -> None:
        self.traps = traps
        self._environment = traps.environment(data)
        self._cold: set[tuple[str | Path, ...]] = set()

    def run(self, *words: str | Path, may_fail: bool = False) -> str:
        """Run a command; the first of each group starts as usual, further ones start warm."""
        is_first = words[:2] not in self._cold
        self._cold.add(words[:2])
        done = (subprocess.run if is_first else warm_programs.run)(
            self.traps.words(*words),
            cwd=self.traps.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=550,
        )
        assert self.traps.sprung() == [], words
        assert done.returncode in ((0, 1) if may_fail else (0,)), (
            f"{words}: {done.stdout}{done.stderr}"
        )
        return done.stdout

    def start(self, log: Path, *words: str | Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                self.traps.words(*words),
                cwd=self.traps.folder,
                env=self._environment,
                stdout=file,
                stderr=file,
            )


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(Traps(tmp_path / "traps"), tmp_path / "fleet")


def test_the_traps_do_spring(user: User) -> None:
    command = python_command("edgepack.agent.runtime.facts")
    unguarded = [word for word in command if word != "-P"]
    subprocess.run(unguarded, cwd=user.traps.folder, capture_output=True, timeout=400)
    assert user.traps.sprung()


def build_bundles(user: User, folder: Path) -> tuple[Path, Path]:
    """Build two releases, of which the second starts a child of every kind."""
    key, model, samples = folder / "release.key", folder / "small.onnx", folder / "samples.npz"
    save(small_cnn(batch=1), model)
    write_stack(samples, 40)
    given = (model, "--calibration", samples, "--key", key)
    one, two = folder / "small-1.1.0.edgepack", folder / "small-1.2.0.edgepack"
    user.run("edgepack", "build", *given, "--profile", "fp32", "-o", one)
    profiles = ("fp32", "cpu", "qnn-htp-v68")
    user.run(
        *("edgepack", "build", *given, "-o", two),
        *(word for name in profiles for word in ("--profile", name)),
        *("--plain-runtime", OLDEST, "--toolchain", f"cpu={sys.executable}", "--allow-degraded"),
    )
    return one, two


def test_no_command_runs_python_code_of_the_current_folder(user: User, tmp_path: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        run_every_command(user, tmp_path, processes)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(400)
    assert user.traps.sprung() == []
    assert ALL_COMMANDS - user.traps.ran == set()


def run_every_command(user: User, folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    run, public = user.run, folder / "release.pub"
    run("edgepack", "keys", "generate", "-o", folder / "release")
    run("edgepack", "keys", "show", public)
    no_package = folder / "no.deb"
    no_package.write_bytes(b"no package")
    key = ("--key", folder / "release.key")
    run("edgepack", "agent-release", no_package, *key, may_fail=True)
    run("edgepack", "profiles", "list")
    run("edgepack", "profiles", "show", "cpu")

    one, two = build_bundles(user, folder)
    run("edgepack", "init", folder / "small.onnx", "-o", folder / "edgepack.toml")
    run("edgepack", "compare", one, two)
    run("edgepack", "delta", one, two)
    run("edgepack", "inspect", one, "--key", public)
    run("edgepack", "verify", one, "--key", public)
    run("edgepack", "unpack", one, "-o", folder / "unpacked")
    with registry(folder) as server:
        target = f"oci://127.0.0.1:{server.port}/models/small:1.1.0"
        run("edgepack", "push", one, target, "--http-unsafe")
        run("edgepack", "pull", target, "-o", folder / "pulled", "--http-unsafe", "--key", public)

    data, port, broker_port = folder / "fleet", free_port(), free_port()
    words = ("--port", str(port), "--broker-port", str(broker_port), "--trust", public)
    run("edgepack", "fleet", "init")
    run("edgepack", "fleet", "keys", "list")
    run("edgepack", "fleet", "keys", "renew", "timestamp")
    run("edgepack", "fleet", "keys", "renew-authority", may_fail=True)
    run("edgepack", "fleet", "keys", "rotate", "timestamp")
    run("edgepack", "fleet", "keys", "threshold", "root", "1", may_fail=True)
    run("edgepack", "fleet", "keys", "revoke", "timestamp", "0" * 64, may_fail=True)
    _, team = write_key_pair(generate_key(), folder / "team")
    run("edgepack", "fleet", "keys", "publisher", "vision", "--models", "ocr-*", "--key", team)
    run("edgepack", "fleet", "broker-config", "--host", "localhost", "-o", folder / "broker")
    processes.append(user.start(folder / "serve.log", "edgepack", "fleet", "serve", *words))

    url = ("--url", f"http://127.0.0.1:{port}")

    def is_there() -> bool:
        asked = user.traps.words("edgepack", "fleet", "info", *url)
        environment = user.traps.environment(data)
        done = warm_programs.run(
            asked, cwd=user.traps.folder, env=environment, capture_output=True, timeout=400
        )
        return done.returncode == 0

    wait_until(is_there, "the fleet answers")
    device = folder / "cam-1"
    place = ("--state-dir", device / "state", "-o", device)
    run("edgepack", "fleet", "enroll", "cam-1", "--group", "cameras", *place, *url)
    processes.append(user.start(folder / "agent.log", "edgepack-agent", "run"))
    settings = ("--soak", "0.2", "--deadline", "400", "--yes", *url)
    for number, bundle in enumerate((one, two), 1):
        run("edgepack", "publish", bundle, *url)
        run("edgepack", "rollout", "start", bundle, "--group", "cameras", *settings)
        run("edgepack", "rollout", "watch", f"r{number}", *url)
    run("edgepack", "rollout", "rollback", "r2", *settings)
    run("edgepack", "rollout", "watch", "r3", *url)
    run("edgepack", "rollout", "list", *url)
    for word in ("status", "report"):
        run("edgepack", "rollout", word, "r1", *url)
    for word in ("abort", "approve", "pause", "resume", "retry"):
        run("edgepack", "rollout", word, "r1", *url, may_fail=True)
    run("edgepack", "export", one, "--with-metadata", "-o", folder / "stick", *url)
    run("edgepack", "simulate", "--devices", "2", "--for", "1", *url)
    devices = ("edgepack", "fleet", "devices")
    run(*devices, *url)
    run(*devices, "show", "cam-1", *url)
    run(*devices, "label", "cam-1", "site=berlin", *url)
    run(*devices, "move", "cam-1", "--group", "others", *url)
    run("edgepack", "fleet", "groups", *url)
    run("edgepack", "fleet", "events", *url)
    run("edgepack", "fleet", "audit", *url)
    run("edgepack", "fleet", "latency", *url)
    run("edgepack", "fleet", "login", *url)
    run(
        "edgepack", "fleet", "feedback", "small", "-o", folder / "feedback.npz", *url, may_fail=True
    )
    run("edgepack", "fleet", "capture", "small", "--all", *url, may_fail=True)
    run("edgepack", "fleet", "samples", *url)
    run("edgepack", "fleet", "devices", "log", "cam-1", "--last", *url, may_fail=True)
    pulled = folder / "pulled"
    run("edgepack", "fleet", "samples", "pull", "small", "-o", pulled, *url, may_fail=True)
    run("edgepack", "fleet", "samples", "remove", "small", *url, may_fail=True)
    run("edgepack", "fleet", "revocations", "-o", folder / "ca.crl", *url)
    run("edgepack", "fleet", "releases", *url)
    run("edgepack", "fleet", "releases", "prune", *url)
    run("edgepack", "withdraw", "small@1.2.0", *url)
    run("edgepack", "fleet", "releases", "remove", "small@1.2.0", *url, may_fail=True)
    run("edgepack", "fleet", "tokens", *url)
    run("edgepack", "fleet", "tokens", "make", "ci", "--role", "viewer", *url)
    run("edgepack", "fleet", "tokens", "revoke", "ci", *url)
    run("edgepack", "fleet", "webhooks", *url)
    run(
        "edgepack",
        "fleet",
        "webhooks",
        "add",
        "chat",
        "--to",
        "https://127.0.0.1/x",
        *url,
        may_fail=True,
    )
    run("edgepack", "fleet", "webhooks", "test", "chat", *url, may_fail=True)
    run("edgepack", "fleet", "webhooks", "remove", "chat", *url, may_fail=True)
    run(*devices, "remove", "cam-1", *url)
    run_every_command_of_a_device(user, folder, one, two, processes)


def run_every_command_of_a_device(
    user: User, folder: Path, one: Path, two: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    alone = folder / "alone"
    alone.mkdir()
    config = alone / "agent.toml"
    config.write_text(
        'device = "cam-2"\nstate_dir = "state"\n[broker]\nurl = "mqtt://127.0.0.1:1"\n'
        f'[trust]\nkeys = ["{folder / "release.pub"}"]\n[limits]\ndisk_reserve_bytes = 1\n'
    )
    words = ("--config", config)
    run = user.run
    run("edgepack-agent", "enroll", folder / "none.enrol", "--folder", alone, may_fail=True)
    run("edgepack-agent", "providers")
    run("edgepack-agent", "install", one, *words, "--soak", "0")
    run("edgepack-agent", "install", two, *words, "--soak", "0")
    run("edgepack-agent", "status", *words)
    processes.append(user.start(folder / "server.log", "edgepack-agent", "serve", *words))
    run("edgepack-agent", "rollback", "small", *words)
    run("edgepack-agent", "doctor", *words, may_fail=True)
    run("edgepack-agent", "env", "small", *words)
    run("edgepack-agent", "explain", "small", *words)
    run("edgepack-agent", "bench", "small", "--seconds", "0.1", *words)
    run("edgepack-agent", "infer", "small", folder / "samples.npz", *words, may_fail=True)
    run("edgepack-agent", "generate", "small", "Hello", *words, may_fail=True)
    run("edgepack-agent", "eim", "small", "-o", alone / "small.eim", *words)
    module = alone / "mender"
    run("edgepack-agent", "other-fleet", "mender", "--write", module, *words)
    for command in (("setup",), ("service", "install"), ("service", "remove")):
        run("edgepack-agent", *command, "--help")  # They would change this machine.
    run("edgepack-agent", "samples", "small", "-o", alone / "samples", *words, may_fail=True)
    run("edgepack-agent", "remove", "small", *words)
