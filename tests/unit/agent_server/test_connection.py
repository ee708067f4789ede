"""Connections of clients that stall, send drop by drop, do not read, or send anything."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from edgepack.agent.config import ServerConfig
from edgepack.agent.server import connection, listening
from edgepack.agent.server.blocks import Blocks
from edgepack.agent.server.connection import Exchange, Request
from edgepack.agent.server.http_messages import HttpError, Response
from edgepack.agent.server.listening import Listeners
from edgepack.agent.state.model_server import SOCKET_FILE
from tests.simulators.waiting import PATIENCE_S

LARGE = b"x" * 4_000_000
HUGE = b"x" * 12_000_000
GET = b"GET /small HTTP/1.1\r\n\r\n"
SETTINGS = ServerConfig(memory_bytes=10_000_000, body_bytes=5_000_000, connections=20)

Connect: TypeAlias = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def handle(request: Request, exchange: Exchange) -> None:
    """Answer with the length of the body, with much, late, or with a fault."""
    target = request.head.target
    if target == "/fault":
        raise ZeroDivisionError
    if target == "/wrong":
        raise HttpError(400, "wrong")
    if target == "/late":
        respond = exchange.respond
        asyncio.get_running_loop().call_later(0.05, respond, Response(200, (b"late",)))
        return
    if target == "/slow":
        time.sleep(0.05)  # The loop hears no client meanwhile.
        target = "/large"
    body = {"/large": LARGE, "/huge": HUGE}.get(target, b"%d" % len(request.body))
    exchange.respond(Response(200, (body,)))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a test next to listeners with short limits; all memory must be free in the end."""
    monkeypatch.setattr(listening, "LOOK_S", 0.02)
    monkeypatch.setattr(connection, "REQUEST_S", 0.3)
    monkeypatch.setattr(connection, "SLOWEST_BYTES_PER_S", 10**9)
    monkeypatch.setattr(connection, "IDLE_S", 0.3)
    monkeypatch.setattr(connection, "LINGER_S", 0.1)

    def run(
        test: Callable[[Connect], Awaitable[None]],
    ) -> None:
        async def serve() -> None:
            listeners = Listeners(tmp_path, SETTINGS, handle, Blocks())
            await listeners.start()
            try:
                await asyncio.wait_for(
                    test(lambda: asyncio.open_unix_connection(str(tmp_path / SOCKET_FILE))),
                    PATIENCE_S,
                )
                while listeners.count:
                    await asyncio.sleep(0.02)
                assert listeners.budget._left == SETTINGS.memory_bytes
            finally:
                await listeners.stop(0.0)

        asyncio.run(serve())

    return run


async def ask(connect: Connect, content: bytes) -> bytes:
    """Send bytes, and return all that comes until the server ends the connection."""
    reader, writer = await connect()
    writer.write(content)
    try:
        return await read_all(reader)
    finally:
        writer.close()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Return all that comes until the end, also if the end is an error."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            said += piece
    return said


def test_request_that_stalls_or_drips_is_ended_while_others_are_served(
    run: Callable[..., None],
) -> None:
    async def test(connect: Connect) -> None:
        halves = (b"GET /sm", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc")
        chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"

        async def drip() -> bytes:
            reader, writer = await connect()
            reading = asyncio.create_task(read_all(reader))
            while not reading.done():
                writer.write(b"G")
                await asyncio.sleep(0.01)
            writer.close()
            return await reading

        stalled = [asyncio.create_task(ask(connect, half)) for half in (*halves, chunked)]
        dripping = asyncio.create_task(drip())
        good = await ask(connect, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert good.startswith(b"HTTP/1.1 200 ")
        for said in await asyncio.gather(*stalled, dripping):
            assert said.startswith(b"HTTP/1.1 408 ")

    run(test)


def test_begun_large_bodies_count_in_whole_pages(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may give 2 MiB for the first byte."""
    monkeypatch.setattr(connection, "REQUEST_S", PATIENCE_S)
    monkeypatch.setattr(listening, "STALLED_LOOKS", 10**9)

    async def test(connect: Connect) -> None:
        head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
        begun, peers = SETTINGS.memory_bytes // connection.PAGE_BYTES, []
        for _ in range(begun):
            reader, writer = await connect()
            writer.write(head % SETTINGS.body_bytes + bytes(connection.FREE_BYTES + 1))
            peers.append((reader, writer))
        await asyncio.sleep(0.05)
        said = await ask(connect, head % SETTINGS.body_bytes + bytes(2 * connection.PAGE_BYTES))
        assert said.startswith(b"HTTP/1.1 429 ")
        for _, writer in peers:
            writer.close()

    run(test)


def test_idle_connection_and_response_that_nobody_reads_are_ended(
    run: Callable[..., None],
) -> None:
    async def test(connect: Connect) -> None:
        assert await ask(connect, b"") == b""
        reader, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\n\r\n" * 3)
        await asyncio.sleep(0.6)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.readexactly(2 * len(LARGE))
        writer.close()

    run(test)


async def pause(
    connect: Connect, target: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask, and read no more than the beginning until the reader is read."""
    reader, writer = await connect()
    reader._limit = 1  # type: ignore[attr-defined]
    writer.write(b"GET %s HTTP/1.1\r\nConnection: close\r\n\r\n" % target)
    return reader, writer


def test_responses_that_find_no_memory_are_rejected(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REQUEST_S", PATIENCE_S)
    monkeypatch.setattr(listening, "STALLED_LOOKS", 10**9)

    async def test(connect: Connect) -> None:
        peers = [await pause(connect, b"/large") for _ in range(5)]
        await asyncio.sleep(0.3)
        said = [await read_all(reader) for reader, _ in peers]
        assert sorted(one[9:12] for one in said) == [b"200"] * 2 + [b"429"] * 3
        assert all(len(one) > len(LARGE) for one in said if one[9:12] == b"200")
        assert b"4000000 bytes" in min(said, key=len)
        for _, writer in peers:
            writer.close()

    run(test)


def test_clients_that_read_at_once_are_not_cut_although_the_loop_is_late(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REQUEST_S", PATIENCE_S)

    async def test(connect: Connect) -> None:
        request = b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n"
        said = await asyncio.gather(*(ask(connect, request) for _ in range(12)))
        assert {one[9:12] for one in said} <= {b"200", b"429"}
        assert all(len(one) > len(LARGE) for one in said if one[9:12] == b"200")

    run(test)


def test_response_larger_than_the_memory_is_sent_alone(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REQUEST_S", PATIENCE_S)

    async def test(connect: Connect) -> None:
        said = await ask(connect, b"GET /huge HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert len(said) > len(HUGE)

    run(test)


def test_client_that_reads_slowly_gets_its_whole_response(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SLOWEST_BYTES_PER_S", len(LARGE) / PATIENCE_S)

    async def test(connect: Connect) -> None:
        reader, writer = await pause(connect, b"/large")
        await asyncio.sleep(0.6)  # twice the time to begin
        assert len(await read_all(reader)) > len(LARGE)
        writer.close()

    run(test)


def test_fault_is_answered_and_the_connection_goes_on(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(connect: Connect) -> None:
        one = b"GET /%s HTTP/1.1\r\n\r\n"
        said = await ask(connect, b"".join(one % path for path in (b"fault", b"late", b"wrong")))
        parts = said.split(b"HTTP/1.1 ")[1:]
        assert [part[:3] for part in parts] == [b"500", b"200", b"400"]
        assert b'{"error":"fault in edgepack' in parts[0]

    run(test)
    assert "ZeroDivisionError" in caplog.text


def test_compressed_body_is_named_and_the_connection_goes_on(run: Callable[..., None]) -> None:
    async def test(connect: Connect) -> None:
        post = b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Encoding: %s\r\n\r\n{}"
        said = await ask(connect, post % b"gzip" + post % b"identity")
        parts = said.split(b"HTTP/1.1 ")[1:]
        assert [part[:3] for part in parts] == [b"415", b"200"]
        assert b"compressed, as by 'gzip'" in parts[0]

    run(test)


def test_client_that_goes_in_the_middle_leaves_nothing(run: Callable[..., None]) -> None:
    async def test(connect: Connect) -> None:
        body = b"POST / HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n"
        for content in (GET, body + LARGE[:2_000_000], b"GET /late HTTP/1.1\r\n\r\n", body + LARGE):
            _, writer = await connect()
            writer.write(content)
            await asyncio.sleep(0.02)
            writer.transport.abort()

    run(test)


@pytest.mark.parametrize("seed", range(5))
def test_any_bytes_are_answered_or_dropped(run: Callable[..., None], seed: int) -> None:
    """Requests are cut, repeated and mixed with noise, from many clients at once."""
    drawn = random.Random(seed)
    pieces = (
        *(GET, GET[:9], b"\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 70000\r\n\r\n"),
        *(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nabcde\r\n0\r\n\r\n"),
        *(
            b"Expect: 100-continue\r\n",
            b"Content-Length: -1\r\n",
            LARGE[:80_000],
            bytes(range(256)),
        ),
        b"GET /large HTTP/1.1\r\n\r\n",
    )

    async def test(connect: Connect) -> None:
        contents = [b"".join(drawn.choices(pieces, k=drawn.randint(1, 6))) for _ in range(30)]
        said = await asyncio.gather(*(ask(connect, content) for content in contents))
        assert all(not one or one.startswith(b"HTTP/1.1 ") for one in said)
        good = await ask(connect, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert good.startswith(b"HTTP/1.1 200 ")

    run(test)
