"""HTTP proxies: the choice of a proxy, and its tunnel (RFC 9110, CONNECT)."""

import base64
import socket
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import msgspec

from edgepack.text import printable
from edgepack.web.deadline import Deadline, DeadlineSocket, answer_within

DIRECT = "direct"
"""As a setting: no proxy, whatever the environment says."""
MAX_ANSWER_BYTES = 16 * 1024
_REASON_LETTERS = 100
_PORT = 3128
"""Of Squid; what a proxy without a port in its URL most often listens at."""
_WEB = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
"""Which variable of the environment speaks for a scheme. There is none for MQTT."""


class Proxy(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP proxy.

    Attributes:
        host, port: Address of the proxy.
        credentials: `user:password`, or "".
    """

    host: str
    port: int
    credentials: str = ""

    @property
    def title(self) -> str:
        """Address of the proxy, safe to print."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """URL of the proxy, without the credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def authorization(self) -> str:
        """Value of the authorization header, "" without credentials."""
        if not self.credentials:
            return ""
        return f"Basic {base64.b64encode(self.credentials.encode()).decode()}"


class ProxyError(OSError):
    """The proxy opens no tunnel."""


def find_proxy(scheme: str, host: str, setting: str = "") -> Proxy | None:
    """Return the proxy for a host.

    Args:
        scheme, host: Of where to.
        setting: URL of a proxy; "direct" for none; "" asks the environment (`HTTPS_PROXY`,
            `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`), which speaks for the web alone, not for MQTT.

    Raises:
        ValueError: The setting is not a URL of an HTTP proxy.
    """
    if setting == DIRECT:
        return None
    if setting:
        return read_proxy(setting)
    named = getproxies_environment()
    kind = _WEB.get(scheme, "")
    url = (named.get(kind) or named.get("all", "")) if kind else ""
    if not url or proxy_bypass(host):
        return None
    return read_proxy(url)


def read_proxy(url: str) -> Proxy:
    """Read a proxy's URL, `http://[user:password@]host[:port]`.

    Raises:
        ValueError: The URL is invalid. The message shows no password.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or _PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("the proxy's URL is none of an HTTP proxy: write http://host:port")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    credentials = f"{user}:{password}" if user or password else ""
    return Proxy(host=parts.hostname, port=port, credentials=credentials)


def open_tunnel(proxy: Proxy, host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connection to a host and port that the proxy makes.

    Args:
        proxy: The proxy; the proxy resolves the host's name.
        host, port: Where to.
        timeout_s: Limit for the whole tunnel.

    Raises:
        OSError: The proxy cannot be reached, or opens no tunnel (`ProxyError`).
    """
    deadline = Deadline(answer_within(timeout_s))
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    try:
        opened = deadline.connect(proxy.host, proxy.port)
    except OSError as error:
        said = error.strerror or str(error)
        raise ProxyError(f"the proxy {proxy.title} cannot be reached: {said}") from error
    try:
        opened.sendall("\r\n".join([*lines, "", ""]).encode())
        status = _read_status(opened, proxy)
    except BaseException:
        opened.close()
        raise
    code = status.split(" ", 2)[1:2]
    if code and len(code[0]) == 3 and code[0].startswith("2"):
        return opened.leave_deadline()
    opened.close()
    if code in (["401"], ["407"]):  # 401 is what tinyproxy says of a wrong password.
        raise ProxyError(
            f"the proxy {proxy.title} requires a user name and a password, or rejects the given: "
            "http://user:password@host:port"
        )
    said = printable(status[:_REASON_LETTERS])
    raise ProxyError(f"the proxy {proxy.title} opens no way to {target}: {said}")


def _read_status(opened: DeadlineSocket, proxy: Proxy) -> str:
    """Return the first line of its answer, which is read to its end, and no further."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        try:
            # Who is behind it says nothing before we do, so nothing of his can be in it.
            piece = opened.recv(MAX_ANSWER_BYTES)
        except TimeoutError as error:
            raise ProxyError(f"the proxy {proxy.title} gives no answer") from error
        except ConnectionError:
            piece = b""
        answer += piece
        if (
            not piece
            or len(answer) > MAX_ANSWER_BYTES
            or not answer.startswith(b"HTTP/"[: len(answer)])
        ):
            raise ProxyError(f"the server at {proxy.title} is not an HTTP proxy")
    return answer.partition(b"\r\n")[0].decode("ascii", "replace")
