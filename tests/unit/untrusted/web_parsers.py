"""What answers on the web: receivers of webhooks, providers of logins, registries, WebSockets.

Real sockets on loopback: what comes is read by all that reads it in a process that runs.
"""

import base64
import contextlib
import hashlib
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from edgepack.agent.transfer.http_source import HttpSource
from edgepack.agent.transfer.source import Piece, Remote, SourceError
from edgepack.errors import FleetError, TransferError
from edgepack.fleet.database.webhooks import Message
from edgepack.fleet.oidc.provider import Attempt, Provider
from edgepack.fleet.oidc.settings import OidcSettings
from edgepack.fleet.webhooks.delivery import Hook, send
from edgepack.fleet.webhooks.sending import make_secret
from edgepack.registry.client import Registry
from edgepack.registry.reference import read_reference
from edgepack.web.broker_url import read_broker_url
from edgepack.web.http import Web, WebAccess, WebError, read_whole
from edgepack.web.websocket import WebSocket, WebSocketError
from tests.simulators.any_answer import AnyAnswer, http_answer, read_request
from tests.simulators.certificates import make_authority
from tests.unit.untrusted.table import Parser

CLIENT, NOW = "edgepack", 1_800_000_000.0
ATTEMPT = Attempt(state="s" * 43, nonce="n" * 43, verifier="v" * 64, then="/")
BODY = bytes(range(256)) * 40
ACCEPT = b"@ACCEPT@"
HANDSHAKE = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: " + ACCEPT + b"\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
FRAMES = (
    b"\x82\x05hello" + b"\x89\x02hi" + b"\x02\x03abc" + b"\x80\x02de",
    b"\x82\x7e\x01\x00" + bytes(256) + b"\x8a\x00" + b"\x88\x05\x03\xe8bye",
    b"\x82\x7f" + (70_000).to_bytes(8) + bytes(70_000),
)


def web_parsers(folder: Path) -> Iterator[Parser]:
    """All of them; `folder` is for their files."""
    yield _of_webhooks()
    yield from _of_logins()
    # One authority, since the system's take a while to read each time.
    make_authority(folder, "web")
    access = WebAccess(proxy="direct", ca_file=str(folder / "web.pem"))
    yield from _of_files(access)
    yield from _of_registries(access)
    yield from _of_websockets()


def _of_webhooks() -> Parser:
    server = AnyAnswer(lambda _: b"")
    hook = Hook(name="w", key="k", url=server.url, secret=make_secret(), is_unsafe=True)
    message = Message(source="e", id=1, type="rollout", at=1.0, data={})

    def read(content: bytes) -> None:
        server.answer = lambda _: content
        send(hook, "t", message)

    more = b"HTTP/1.1 100 Continue\r\n\r\n" + http_answer(b"", "204 No Content", "X: y")
    return Parser(
        name="answer of a webhook",
        seeds=(http_answer(b"taken"), more),
        read=read,
        errors=(FleetError,),
    )


def _of_logins() -> Iterator[Parser]:
    """What a provider says of itself, its keys, its answer with a token, and the token."""
    key = ECKey.generate_key("P-256", {"kid": "k1", "use": "sig"})
    other = RSAKey.generate_key(2048, {"kid": "k2"})
    said: dict[str, bytes] = {}

    def answer(request: bytes) -> bytes:
        path = request.split(b" ")[1].decode("latin-1").partition("?")[0]
        return http_answer(said.get(path, b""))

    server = AnyAnswer(answer)
    issuer = server.url
    claims = {
        "iss": issuer,
        "aud": [CLIENT],
        "azp": CLIENT,
        "sub": "u-1",
        "email": "alice@example",
        "groups": ["team"],
        "iat": int(NOW),
        "exp": int(NOW) + 300,
        "nonce": ATTEMPT.nonce,
    }

    def token_of(payload: bytes) -> str:
        header = {"alg": "ES256", "kid": "k1", "typ": "JWT"}
        return jws.serialize_compact(header, payload, key, algorithms=["ES256"])

    token = token_of(json.dumps(claims).encode())
    names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
    document = {name: f"{issuer}/{name}" for name in names} | {"issuer": issuer}
    keys = {"keys": [one.as_dict(private=False) for one in (other, key)]}
    good: dict[str, bytes] = {
        "/.well-known/openid-configuration": json.dumps(document).encode(),
        "/jwks_uri": json.dumps(keys).encode(),
        "/token_endpoint": json.dumps({"id_token": token, "token_type": "Bearer"}).encode(),
    }
    settings = OidcSettings(
        issuer=issuer, client_id=CLIENT, url="https://fleet.example", roles={"viewer": ("team",)}
    )

    def provider() -> Provider:
        return Provider(settings, "secret", clock=lambda: NOW)

    def finish(opened: Provider) -> object:
        opened.login_url(ATTEMPT)
        return opened.finish(ATTEMPT, {"state": ATTEMPT.state, "code": "c"})

    def saying(path: str) -> Callable[[bytes], object]:
        def read(content: bytes) -> object:
            said.update(good | {path: content})
            return finish(provider())

        return read

    for name, path in (
        ("provider's word of itself", "/.well-known/openid-configuration"),
        ("provider's keys", "/jwks_uri"),
        ("provider's answer with a token", "/token_endpoint"),
    ):
        yield Parser(name=name, seeds=(good[path],), read=saying(path), errors=(FleetError,))
    said.update(good)
    known = provider()

    def read_token(content: bytes) -> object:
        said.update(good)
        return known.of_token(content.decode("utf-8", "surrogateescape"))

    yield Parser(name="ID token", seeds=(token.encode(),), read=read_token, errors=(FleetError,))
    yield Parser(
        name="claims that the provider signed",
        seeds=(json.dumps(claims).encode(),),
        read=lambda content: read_token(token_of(content).encode()),
        errors=(FleetError,),
    )


def _of_files(access: WebAccess) -> Iterator[Parser]:
    """Ranges for a device, and a whole file for whoever pulls one."""
    server = AnyAnswer(lambda _: b"")
    size = len(BODY) // 2
    remote = Remote(
        url=f"{server.url}/f",
        size_bytes=len(BODY),
        pieces=(
            Piece(start=0, size_bytes=size, sha256="ab" * 32, index=0),
            Piece(start=size, size_bytes=size, sha256="ab" * 32, index=1),
        ),
    )

    def read_ranges(content: bytes) -> None:
        server.answer = lambda _: content
        web = Web(access)
        source = HttpSource(
            "it", lambda url, more: web.ask(url, headers=more), web.close, retry_s=()
        )
        for chunk in source.read([remote]):
            assert len(chunk.content) == size

    def read_file(content: bytes) -> None:
        server.answer = lambda _: content
        with closing(Web(access)) as web:
            pieces = read_whole(lambda more: web.ask(server.url, headers=more), len(BODY), "it")
            assert sum(map(len, pieces)) <= len(BODY)

    whole = http_answer(BODY)
    ranges = f"Content-Range: bytes 0-{len(BODY) - 1}/{len(BODY)}"
    yield Parser(
        name="ranges of a source",
        seeds=(http_answer(BODY, "206 Partial Content", ranges), whole),
        read=read_ranges,
        errors=(SourceError,),
    )
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(
        b"400\r\n" + BODY[at : at + 1024] + b"\r\n" for at in range(0, len(BODY), 1024)
    )
    yield Parser(
        name="file of a web server",
        seeds=(whole, chunked + b"0\r\n\r\n"),
        read=read_file,
        errors=(WebError,),
    )


def _of_registries(access: WebAccess) -> Iterator[Parser]:
    """A registry's challenge, its server of tokens, and its reasons for a refusal."""
    server = AnyAnswer(lambda _: b"")
    asks = f'Bearer realm="{server.url}/token",service="r",scope="repository:m:pull"'
    challenge = http_answer(b"", "401 Unauthorized", f"WWW-Authenticate: {asks}")

    def read(content: bytes, answer: Callable[[bytes, bytes], bytes]) -> None:
        server.answer = lambda request: answer(request, content)
        reference = read_reference(f"oci://127.0.0.1:{server.port}/m:1")
        with closing(Registry(reference, access=access, http_unsafe=True)) as registry:
            registry.read_manifest("1")

    def ask_for_token(request: bytes, content: bytes) -> bytes:
        if request.startswith(b"GET /token"):
            return http_answer(content)
        return http_answer(b"{}") if b"Authorization: Bearer" in request else challenge

    yield Parser(
        name="token of a registry",
        seeds=(b'{"token": "abc", "expires_in": 60}', b'{"access_token": "abc"}'),
        read=lambda content: read(content, ask_for_token),
        errors=(TransferError,),
    )

    def refuse(content: bytes, status: str, *headers: str) -> None:
        with contextlib.suppress(TransferError):
            read(content, lambda _, content: http_answer(content, status, *headers))

    yield Parser(
        name="reasons of a registry",
        seeds=(b'{"errors": [{"code": "NAME_UNKNOWN", "message": "no such repository"}]}',),
        read=lambda content: refuse(content, "404 Not Found"),
        errors=(),
    )
    yield Parser(
        name="challenge of a registry",
        seeds=(asks.encode(), b'Basic realm="r"'),
        read=lambda content: refuse(
            b"", "401 Unauthorized", f"WWW-Authenticate: {content.decode('latin-1')}"
        ),
        errors=(),
    )


def _of_websockets() -> Iterator[Parser]:
    def read(answer: Callable[[bytes], bytes], frames: bytes) -> None:
        near, far = socket.socketpair()
        thread = threading.Thread(target=_play_server, args=(far, answer, frames))
        thread.start()
        try:
            with closing(WebSocket(near, read_broker_url("ws://broker.example/mqtt"), 5)) as opened:
                _read_all(opened)
        finally:
            near.close()
            thread.join()

    yield Parser(
        name="handshake of a WebSocket",
        seeds=(HANDSHAKE,),
        read=lambda content: read(lambda _: content, FRAMES[0]),
        errors=(WebSocketError,),
    )
    yield Parser(
        name="frames of a WebSocket",
        seeds=FRAMES,
        read=lambda content: read(lambda _: HANDSHAKE, content),
        errors=(WebSocketError,),
    )


def _play_server(far: socket.socket, answer: Callable[[bytes], bytes], frames: bytes) -> None:
    """Answers a handshake, with what the client asked to hear for where that stands; sends more."""
    with far, contextlib.suppress(OSError):
        far.settimeout(5)
        request = read_request(far)
        lines = (line.partition(b": ") for line in request.split(b"\r\n"))
        key = next(value for name, _, value in lines if name.lower() == b"sec-websocket-key")
        guid = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        right = base64.b64encode(hashlib.sha1(key + guid, usedforsecurity=False).digest())
        far.sendall(answer(request).replace(ACCEPT, right) + frames)
        far.shutdown(socket.SHUT_WR)
        while far.recv(65536):
            pass


def _read_all(opened: WebSocket) -> None:
    held: deque[Any] = deque(maxlen=1)
    while True:
        try:
            piece = opened.recv(65536)
        except BlockingIOError:
            continue
        except WebSocketError as error:
            if "closed the WebSocket: 1000" not in str(error):
                raise
            return
        if not piece:
            return
        held.append(piece)
