"""Ways to a broker that are not MQTT's own port: WebSockets, and an HTTP proxy.

And a web server, for files from elsewhere than a broker. Debian's mosquitto speaks no WebSockets;
its ejabberd does.
"""

import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import pytest

from tests.simulators import ejabberd
from tests.simulators.ports import free_port
from tests.simulators.waiting import PATIENCE_S

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
REGISTRY = shutil.which("docker-registry") or "/usr/bin/docker-registry"
TINYPROXY = shutil.which("tinyproxy") or "/usr/bin/tinyproxy"
"""How long a server may take to listen, on a machine that is busy."""


def skip_if_missing() -> None:
    """Skip a test if a program is not installed."""
    found = {
        "nginx": Path(NGINX).exists(),
        "tinyproxy": Path(TINYPROXY).exists(),
        "ejabberd": ejabberd.is_installed(),
    }
    if not all(found.values()):
        missing = [name for name, is_there in found.items() if not is_there]
        pytest.skip(f"not installed: {', '.join(missing)}")


class Server:
    """A process that listens on a port of loopback, from here to the end of the block.

    Args:
        command: Starts the server in the foreground.
        port: Port to listen on.
        log: Log file.
        environment: Its own; None takes that of the test.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port
        self._log = log
        with log.open("wb") as said:
            self._process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        wait_for_port(port, self)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def wait_for_port(port: int, server: Server) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if not server.is_running or time.monotonic() > until:
            server.stop()
            raise RuntimeError(f"nothing listens on port {port}: {server.said()}")
        time.sleep(0.05)


_EJABBERD = """\
hosts: [localhost]
loglevel: warning
auth_method: [anonymous]
anonymous_protocol: login_anon
websocket_ping_interval: 1
listen:
  - port: {web_port}
    ip: "127.0.0.1"
    module: ejabberd_http
    request_handlers: {{"/mqtt": mod_mqtt}}
{tls}
  - port: {port}
    ip: "127.0.0.1"
    module: mod_mqtt
modules:
  mod_mqtt: {{}}
"""


_HANDSHAKE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


class Ejabberd(Server):
    """A broker with WebSockets, and a ping every second.

    The broker accepts any name with any password.

    Args:
        folder: For its settings, log and database.
        tls: Path of a certificate without its ending, with its key in the same place; "" means no
            TLS.

    Attributes:
        port: MQTT port.
        web_port: WebSocket port, below /mqtt.
    """

    def __init__(self, folder: Path, *, tls: str = "") -> None:
        self.web_port, port = free_port(), free_port()
        lines = ""
        if tls:
            whole = folder / "ejabberd.pem"
            whole.write_text("".join(Path(f"{tls}.{end}").read_text() for end in ("pem", "key")))
            lines = f'    tls: true\n    certfile: "{whole}"\n'
        settings = folder / "ejabberd.yml"
        settings.write_text(_EJABBERD.format(web_port=self.web_port, port=port, tls=lines))
        environment = os.environ | {
            "ERL_LIBS": str(ejabberd.LIBRARIES[-1].parent),
            "EJABBERD_CONFIG_PATH": str(settings),
            "EJABBERD_LOG_PATH": str(folder / "ejabberd.log"),
            "HOME": str(folder),
        }
        command = [
            ejabberd.ERLANG,
            "-noinput",
            "-mnesia",
            "dir",
            f'"{folder}/mnesia"',
            "-s",
            "ejabberd",
        ]
        super().__init__(command, port, folder / "erlang.log", environment)
        wait_for_port(self.web_port, self)
        self._open_first(is_tls=bool(tls))

    def _open_first(self, *, is_tls: bool) -> None:
        """Open the first WebSocket, which takes ten seconds and more, too long for clients."""
        opened = socket.create_connection(("127.0.0.1", self.web_port), PATIENCE_S)
        if is_tls:
            opened = _believing().wrap_socket(opened)
        with opened:
            opened.sendall(_HANDSHAKE)
            if not opened.recv(100).startswith(b"HTTP/1.1 101 "):
                raise RuntimeError(f"it opens no WebSocket: {self.said()}")


def _believing() -> ssl.SSLContext:
    """Accept any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def tinyproxy(folder: Path, *allowed_ports: int, password: str = "") -> Server:
    """Start an HTTP proxy.

    Args:
        folder: For its settings and log.
        allowed_ports: Allowed target ports of tunnels.
        password: Of its user `user`; "" lets everybody in.
    """
    port = free_port()
    lines = [f"Port {port}", "Listen 127.0.0.1", "Timeout 60", "LogLevel Connect"]
    lines += [f"ConnectPort {each}" for each in allowed_ports]
    lines += [f"BasicAuth user {password}"] if password else []
    settings = folder / "tinyproxy.conf"
    settings.write_text("\n".join(lines) + "\n")
    return Server([TINYPROXY, "-d", "-c", str(settings)], port, folder / "tinyproxy.log")


_NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-errors.log;
events {{}}
http {{
  access_log {folder}/nginx-access.log;
  client_body_temp_path {folder}/nginx-tmp;
  proxy_temp_path {folder}/nginx-tmp;
  fastcgi_temp_path {folder}/nginx-tmp;
  uwsgi_temp_path {folder}/nginx-tmp;
  scgi_temp_path {folder}/nginx-tmp;
  server {{
    listen 127.0.0.1:{port}{tls};
    root {root};
    {lines}
  }}
}}
"""


class Nginx(Server):
    """A web server for the files of a folder.

    Args:
        folder: For its settings and log.
        root: Served folder.
        lines: Further settings of the server.
        tls: Path of a certificate without its ending, with its key in the same place; "" means no
            TLS.
    """

    def __init__(self, folder: Path, root: Path, *, lines: str = "", tls: str = "") -> None:
        port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        if tls:
            lines += f"ssl_certificate {tls}.pem; ssl_certificate_key {tls}.key;"
        settings = folder / "nginx.conf"
        settings.write_text(
            _NGINX.format(
                folder=folder, port=port, tls=" ssl" if tls else "", root=root, lines=lines
            )
        )
        self._access = folder / "nginx-access.log"
        super().__init__([NGINX, "-c", str(settings)], port, folder / "nginx.log")

    def answers(self) -> list[tuple[str, int, int]]:
        """Return the answers: path, status, bytes of the body."""
        found = []
        for line in self._access.read_text().splitlines():
            request, numbers = line.split('"')[1:3]
            status, size_bytes = numbers.split()[:2]
            found.append((request.split()[1], int(status), int(size_bytes)))
        return found


BCRYPT = "$2b$04$O4almYDY/PaEW2SYYfEoMuDT03czZEYHNh2Nr5/UyWIFxX.SWhAzm"
"""Of the password `secret`."""
_REGISTRY = """\
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {folder}/registry}}
http:
  addr: 127.0.0.1:{port}
{lines}
"""


def registry(folder: Path, *, tls: str = "", auth: str = "") -> Server:
    """Start an OCI registry.

    Args:
        folder: For its settings, log and blobs.
        tls: Path of a certificate without its ending, with its key in the same place; "" means no
            TLS.
        auth: Its section `auth`; "" lets everybody in.
    """
    port = free_port()
    lines = f"  tls: {{certificate: {tls}.pem, key: {tls}.key}}\n" if tls else ""
    settings = folder / "registry.yml"
    lines += f"auth:\n{auth}" if auth else ""
    settings.write_text(_REGISTRY.format(folder=folder, port=port, lines=lines))
    environment = os.environ | {"OTEL_TRACES_EXPORTER": "none"}
    command = [REGISTRY, "serve", str(settings)]
    return Server(command, port, folder / "registry.log", environment)
