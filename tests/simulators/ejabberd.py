"""Two real nodes of ejabberd as a single broker, as processes of the tests' own.

Settings come from `edgepack fleet broker-config ejabberd`; `ejabberdctl`, too, passes its `vm.args`
to Erlang. Each node has its own port, folder and loopback address for traffic between nodes.
No daemon is left behind: the nodes know each other's port without `epmd`.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.simulators.ports import free_port
from tests.simulators.waiting import PATIENCE_S

ERLANG = shutil.which("erl") or "/usr/bin/erl"
LIBRARIES = sorted(Path("/usr/lib").glob("*/ejabberd-*"))


def is_installed() -> bool:
    return Path(ERLANG).exists() and bool(LIBRARIES)


class Node:
    """A node; `ports[0]` is for clients, `ports[1]` for the other node.

    Args:
        number: 1 or 2.
        folder: Of its own.
        settings: The written `ejabberd.yml`, with the port replaced; `vm.args` is in the same
            folder.
        between: Port on which both nodes speak to each other.
        cookie: Known to both nodes alone.
    """

    def __init__(
        self, number: int, folder: Path, settings: Path, *, between: int, cookie: str
    ) -> None:
        self.port = free_port()
        self.name = f"edgepack@127.0.0.{number}"
        self._folder = folder
        folder.mkdir(parents=True)
        self.settings = own = folder / "ejabberd.yml"
        listener = f'    port: {self.port}\n    ip: "127.0.0.1"\n'
        lines = settings.read_text().splitlines(keepends=True)
        own.write_text("".join(listener if "    port:" in line else line for line in lines))
        self._words = ("-setcookie", cookie, "-erl_epmd_port", str(between), "-start_epmd", "false")
        self._started_by = settings.parent / "vm.args"
        self._number = number
        self._environment = os.environ | {
            "HOME": str(folder),
            "ERL_LIBS": str(LIBRARIES[-1].parent),
            "EJABBERD_CONFIG_PATH": str(own),
            "EJABBERD_LOG_PATH": str(folder / "ejabberd.log"),
            "ERL_CRASH_DUMP_SECONDS": "0",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start the node, without waiting."""
        address = f"{{127,0,0,{self._number}}}"
        spool = f'"{self._folder / "spool"}"'
        words = ("-kernel", "inet_dist_use_interface", address, "-mnesia", "dir", spool)
        with (self._folder / "erl.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(ERLANG, "-args_file", str(self._started_by), "-name", self.name),
                    *(*self._words, *words, "-noinput", "-s", "ejabberd"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
            )

    def await_clients(self) -> None:
        """Wait until clients can connect."""
        assert self._process is not None
        until = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"ejabberd did not start: {self.said()}")
            time.sleep(0.05)

    def await_started(self) -> None:
        """Wait until the node has started completely: a node that joins earlier starts broken."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.ask("status")
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return

    def said(self) -> str:
        """Return the log."""
        logs = [path for path in sorted(self._folder.glob("*.log")) if path.is_file()]
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def ask(self, *command: str) -> str:
        """Run a command of `ejabberdctl` on the node."""
        name = f"ask-{secrets.token_hex(4)}@127.0.0.1"
        words = ("-dist_listen", "false", "-hidden", "-noinput", "-s", "ejabberd_ctl")
        done = subprocess.run(
            [ERLANG, "-name", name, *self._words, *words, "-extra", self.name, *command],
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout}{done.stderr}{self.said()}")
        return done.stdout

    def kill(self) -> None:
        """Kill by SIGKILL: the node sends no goodbye."""
        if self._process is not None:
            # Its helpers (erl_child_setup, inet_gethost) are of the same group.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_S)
            self._process = None


class EjabberdPair:
    """Starts and joins both nodes.

    Args:
        folder: Holds the nodes' files.
        settings: The written `ejabberd.yml`.
    """

    def __init__(self, folder: Path, settings: Path) -> None:
        shared = {"between": free_port(), "cookie": secrets.token_hex(16)}
        self.nodes = [
            Node(number, folder / f"node-{number}", settings, **shared)  # type: ignore[arg-type]
            for number in (1, 2)
        ]
        try:
            for node in self.nodes:
                node.begin()
            for node in self.nodes:
                node.await_clients()
            for node in self.nodes:
                node.await_started()
            self.nodes[1].ask("join_cluster", self.nodes[0].name)
            self.nodes[1].await_clients()
            self.nodes[1].await_started()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """Both nodes as a URL for clients."""
        return "mqtts://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
