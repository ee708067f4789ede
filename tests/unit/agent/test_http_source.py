"""Power of a web server over a device that fetches its chunks: only sending chunks."""

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.agent.state.slots import Slots
from edgepack.agent.transfer.ahead import Taken, take_ahead
from edgepack.agent.transfer.download import Download
from edgepack.agent.transfer.http_source import HttpSource
from edgepack.agent.transfer.source import Remote
from edgepack.agent.transfer.source_layout import check_template, find_remotes
from edgepack.bandwidth import parse_bandwidth
from edgepack.bundle.archive import content_starts, pack
from edgepack.bundle.manifest import MANIFEST_FILE, Manifest, decode_manifest
from edgepack.halt import Halt, HaltedError
from edgepack.web.deadline import WaitLimits
from edgepack.web.http import MAX_REDIRECTS, Web, WebAccess, WebError
from tests.simulators.bundles import ExampleBundle, make_bundle

MODEL = "model/cpu/model.onnx"
Reply = Callable[[str, int, int], bytes]
"""Gives the bytes of an answer to a request for a path and a range."""


class Raw:
    """A web server with a test's answers, for a single request a connection.

    Args:
        reply: Makes its answers.
        drip_s: Wait after each byte.
    """

    def __init__(self, reply: Reply, *, drip_s: float = 0.0) -> None:
        self.requests: list[str] = []
        self._reply, self._drip_s = reply, drip_s
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                opened, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(opened,)))
            self._threads[-1].start()

    def _serve(self, opened: socket.socket) -> None:
        with opened:
            try:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += opened.recv(4096) or b"\r\n\r\n"
                text = request.decode()
                self.requests.append(text)
                wanted = [line for line in text.splitlines() if line.startswith("Range: bytes=")]
                first, last = (
                    wanted[0].removeprefix("Range: bytes=").split("-") if wanted else (0, 0)
                )
                answer = self._reply(text.split(" ")[1], int(first), int(last))
                if not self._drip_s:
                    opened.sendall(answer)
                    return
                for at in range(len(answer)):
                    opened.sendall(answer[at : at + 1])
                    if self._ended.wait(self._drip_s):
                        return
            except OSError:
                return


def source_at(headers: Mapping[str, str] = {}, *, read_s: float = 5.0) -> HttpSource:
    web = Web(WebAccess(proxy="direct", limits=WaitLimits(idle_s=read_s)))
    return HttpSource("it", lambda url, more: web.ask(url, headers={**headers, **more}), web.close)


class Case:
    """A bundle, a device without the bundle, and the requested ranges."""

    def __init__(self, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        self.bundle: ExampleBundle = make_bundle(folder / "bundle", key)
        self.manifest: Manifest = decode_manifest((self.bundle.folder / MANIFEST_FILE).read_bytes())
        self.download = Download(Slots(folder), self.bundle.ref.digest, self.manifest.files)
        self.download.reserve()
        self.content = (self.bundle.folder / MODEL).read_bytes()

    def take(self, url: str, *, stall_s: float = 20.0, read_s: float = 5.0) -> Taken:
        source = source_at(read_s=read_s)
        return take_ahead(
            source, lambda _: self.remotes(url), self.download, halt=Halt(), stall_s=stall_s
        )

    def remotes(self, url: str) -> Sequence[Remote]:
        missing = [
            one
            for one in self.download.missing()
            if one.sha256 == hashlib.sha256(self.content).hexdigest()
        ]
        return find_remotes(f"{url}/{{path}}", self.bundle.order(1), self.manifest, missing)

    def has_it(self) -> bool:
        sha256 = hashlib.sha256(self.content).hexdigest()
        return not self.download.lacks(sha256)


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.download.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Raw]]:
    servers: list[Raw] = []

    def start(reply: Reply, *, drip_s: float = 0.0) -> Raw:
        servers.append(Raw(reply, drip_s=drip_s))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def partial(
    content: bytes, first: int, last: int, *, total: int | None = None, sent: int = -1
) -> bytes:
    """Return a complete and honest answer, unless limited."""
    body = content[first : last + 1]
    head = (
        f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(body)}\r\n"
        f"Content-Range: bytes {first}-{last}/{total or len(content)}\r\n\r\n"
    )
    return head.encode() + (body if sent < 0 else body[:sent])


def test_an_answer_that_breaks_off_again_and_again_is_gone_on_with(
    case: Case, serve: Callable[..., Raw]
) -> None:
    server = serve(lambda _, first, last: partial(case.content, first, last, sent=100_000))
    assert case.take(server.url).because == ""
    assert case.has_it()
    starts = [request.split("Range: bytes=")[1].split("-")[0] for request in server.requests]
    assert starts[0] == "0"
    assert sorted(map(int, starts)) == list(map(int, starts))
    assert len(set(starts)) == len(starts) > 3, "no byte that came whole was asked for again"


def test_a_server_that_is_busy_is_asked_again(case: Case, serve: Callable[..., Raw]) -> None:
    def reply(_: str, first: int, last: int) -> bytes:
        if len(server.requests) == 1:
            return b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
        return partial(case.content, first, last)

    server = serve(reply)
    assert case.take(server.url).because == ""
    assert case.has_it()


def lies(head: str, body: bytes = b"") -> Reply:
    return lambda _path, _first, _last: head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (lies("HTTP/1.1 404 \x1b[2J\nContent-Length: 0"), "HTTP status 404"),
        (lies("HTTP/1.1 416 No\nContent-Length: 0"), "HTTP status 416"),
        (lies("HTTP/1.1 206 Yes\nContent-Length: 9"), "another range than was asked for"),
        (lies("HTTP/1.1 206 Yes\nContent-Range: bytes 5-9/10"), "another range than was asked for"),
        (lies("HTTP/1.1 206 Yes\nContent-Range: bytes */10"), "another range than was asked for"),
        (lies(f"HTTP/1.1 206 Yes\nContent-Range: bytes 0-{'9' * 400}/10"), "another range"),
        (lies("HTTP/1.1 200 Yes\nContent-Length: 7", b"seven!!"), "its file has 7 bytes, not"),
        (lies("HTTP/1.1 200 Yes\nContent-Encoding: gzip"), "something encoded"),
        (
            lies("HTTP/1.1 302 There\nLocation: /again\nConnection: close\nContent-Length: 0"),
            "redirects more than",
        ),
        (lies("HTTP/1.1 302 There\nLocation: file:///etc/passwd"), "not a URL of http or https"),
        (lies("HTTP/1.1 302 There\nLocation: http://[::1"), "redirects to an invalid URL"),
        (lies("HTTP/1.1 200 Yes\n" + "X-Y: 1\n" * 200), "100 headers"),
        (lies("SSH-2.0-\x1b[2J"), "it speaks no HTTP ("),
    ],
)
def test_a_server_that_lies_is_left_with_its_reason(
    reply: Reply, said: str, case: Case, serve: Callable[..., Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepack.agent.transfer.http_source.RETRY_S", (0.01,))
    server = serve(reply)
    taken = case.take(server.url)
    assert taken.size_bytes == 0
    assert said in taken.because
    assert taken.because.isprintable()
    assert len(server.requests) <= MAX_REDIRECTS + 1


def test_other_bytes_at_the_right_place_are_taken_for_nothing(
    case: Case, serve: Callable[..., Raw]
) -> None:
    spoilt = bytes(len(case.content))
    server = serve(lambda _, first, last: partial(spoilt, first, last))
    taken = case.take(server.url)
    assert taken == Taken(title="it", size_bytes=0, because="3 chunks are not what was signed")


def test_an_answer_without_an_end_is_read_no_further_than_was_asked(
    case: Case, serve: Callable[..., Raw]
) -> None:
    def reply(_: str, first: int, last: int) -> bytes:
        head = (
            "HTTP/1.1 206 Partial Content\r\nConnection: close\r\n"
            f"Content-Range: bytes {first}-{last}/*\r\n\r\n"
        )
        return head.encode() + case.content[first : last + 1] + bytes(1 << 20)

    assert case.take(serve(reply).url).because == ""
    assert case.has_it()


@pytest.mark.parametrize(
    ("answer", "drip_s", "read_s"),
    [
        (b"HTTP/1.1 206 Partial Content\r\n" + b"X-Y: 1\r\n" * 90, 1.0, 5.0),  # headers drip
        (b"HTTP/1.1 200 Fine\r\n\r\n" + bytes(99999), 0.01, 5.0),  # the body drips
    ],
)
def test_a_server_that_drips_is_left_alone_in_time(
    answer: bytes, drip_s: float, read_s: float, case: Case, serve: Callable[..., Raw]
) -> None:
    server = serve(lambda *_: answer, drip_s=drip_s)
    taken = case.take(server.url, stall_s=1.0, read_s=read_s)
    assert taken.because == "nothing came for 1 s"


def test_a_server_that_says_nothing_is_left_alone(
    case: Case, serve: Callable[..., Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepack.agent.transfer.http_source.RETRY_S", ())
    held = threading.Event()

    def reply(*_: object) -> bytes:
        held.wait(60)
        return b""

    taken = case.take(serve(reply).url, read_s=0.3)
    held.set()
    assert "it does not answer" in taken.because


def test_nobody_there_is_said_without_words_of_a_library(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepack.agent.transfer.http_source.RETRY_S", ())
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    assert case.take(url).because == f"Connection refused ({url}/{MODEL})"


def test_work_that_is_told_to_end_ends_though_the_server_hangs(
    case: Case, serve: Callable[..., Raw]
) -> None:
    server = serve(lambda *_: b"HTTP/1.1 200 Fine\r\n\r\n" + bytes(9999), drip_s=0.1)
    halt = Halt()
    threading.Timer(0.3, halt.set).start()
    source = source_at()
    with pytest.raises(HaltedError):
        take_ahead(source, lambda _: case.remotes(server.url), case.download, halt=halt)


class Waits(Halt):
    """Halt that notes the waiting times without waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.total_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.total_s += timeout or 0.0
        return False


def test_no_more_is_taken_a_second_than_the_settings_allow(
    case: Case, serve: Callable[..., Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepack.agent.transfer.ahead.time.monotonic", lambda: 0.0)
    server = serve(lambda _, first, last: partial(case.content, first, last))
    halt = Waits()
    take_ahead(
        source_at(),
        lambda _: case.remotes(server.url),
        case.download,
        halt=halt,
        bandwidth=parse_bandwidth("100kB/s"),
    )
    assert case.has_it()
    # The clock stands still, so each wait is for all that came before it.
    chunks = len(case.manifest.files[-1].chunks.sizes)
    assert halt.total_s > len(case.content) / 100_000
    assert halt.total_s < chunks * len(case.content) / 100_000


def test_where_nothing_may_be_taken_nobody_is_asked(case: Case, serve: Callable[..., Raw]) -> None:
    server = serve(lambda _, first, last: partial(case.content, first, last))
    halt = Halt()
    threading.Timer(0.3, halt.set).start()
    with pytest.raises(HaltedError):
        take_ahead(
            source_at(),
            lambda _: case.remotes(server.url),
            case.download,
            halt=halt,
            bandwidth=parse_bandwidth("0"),
        )
    assert server.requests == []


def test_credentials_are_not_told_to_whom_it_redirects(
    case: Case, serve: Callable[..., Raw]
) -> None:
    far = serve(lambda _, first, last: partial(case.content, first, last))
    moved = f"HTTP/1.1 307 There\r\nLocation: {far.url}/x\r\nContent-Length: 0\r\n\r\n".encode()
    near = serve(lambda *_: moved)
    source = source_at({"Authorization": "Bearer secret"})
    take_ahead(source, lambda _: case.remotes(near.url), case.download, halt=Halt())
    assert case.has_it()
    assert "Bearer secret" in near.requests[0]
    assert "secret" not in far.requests[0]


def test_nothing_leads_from_https_to_http() -> None:
    from edgepack.web.http import _follow

    with pytest.raises(WebError, match="from https to another scheme"):
        _follow("https://files.example/a", "http://files.example/a")
    assert _follow("http://files.example/a/b", "c") == "http://files.example/a/c"


def test_the_places_in_an_archive_are_those_where_it_was_written(
    tmp_path: Path, case: Case
) -> None:
    archive = tmp_path / "one.edgepack"
    pack(case.bundle.folder, archive)
    content = archive.read_bytes()
    starts = content_starts(
        case.manifest, case.bundle.manifest.size_bytes, case.bundle.signature.size_bytes
    )
    for path, start in starts.items():
        expected = (case.bundle.folder / path).read_bytes()
        assert content[start : start + len(expected)] == expected
    assert set(starts) >= {entry.path for entry in case.manifest.files}


def test_words_of_a_url_are_filled_in_and_cannot_lead_elsewhere(case: Case) -> None:
    (remote,) = case.remotes("https://files.example/{name}/{version}/{digest}/{sha256}")
    sha256 = hashlib.sha256(case.content).hexdigest()
    bundle = case.bundle.ref
    assert remote.url == (
        f"https://files.example/{bundle.name}/{bundle.version}/{bundle.digest}/{sha256}/{MODEL}"
    )
    for url in (
        "https://{host}/{path}",
        "https://files.example/",
        "https://files.example/{path!r}",
    ):
        with pytest.raises(ValueError, match=r"."):
            check_template(url)
