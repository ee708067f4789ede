"""The model server's process: listens, opens models, and drains when told to end."""

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.agent.config import AgentConfig
from edgepack.agent.runtime.heap import return_large_blocks
from edgepack.agent.server.answers import Answers
from edgepack.agent.server.blocks import Blocks
from edgepack.agent.server.connection import Request
from edgepack.agent.server.hosting import Hosting
from edgepack.agent.server.http_messages import Response
from edgepack.agent.server.listening import Listeners
from edgepack.agent.server.memory_socket import MemorySocket
from edgepack.agent.server.routes import Routes
from edgepack.agent.state.model_server import socket_folder
from edgepack.agent.telemetry.readings import memory_bytes
from edgepack.errors import DeviceError
from edgepack.extras import install_command
from edgepack.metrics.table import Distribution, Family, Point, bucket_counts, family
from edgepack.metrics.text import content_type, render
from edgepack.signals import call_on_signals

if TYPE_CHECKING:
    from edgepack.agent.server.grpc_service import GrpcService

log = logging.getLogger(__name__)

DRAIN_S = 3.0
"""How long a stopping server waits for running requests: an agent that ends has 5 s."""
CANCEL_S = 1.0
"""How long a stopping server then waits for texts that were cancelled."""


def run_server(config: AgentConfig, *, until_stdin_ends: bool) -> None:
    """Serve the models of this device until a signal.

    Args:
        config: The agent's settings.
        until_stdin_ends: Whether the server also stops at the end of its standard input: the agent
            that started the server is gone.

    Raises:
        DeviceError: An address cannot be used, or another server runs.
    """
    return_large_blocks()
    if not asyncio.run(_serve(config, until_stdin_ends=until_stdin_ends)):
        log.warning("inferences did not end in time: the process ends without them")
        logging.shutdown()
        os._exit(1)


async def _serve(config: AgentConfig, *, until_stdin_ends: bool) -> bool:
    """Serve until told to stop; return whether all inferences have ended."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    state_dir = Path(config.state_dir)
    hosting = Hosting(
        state_dir,
        config.server,
        threads=config.providers.threads,
        hung_s=config.watch.hung_s,
    )
    metrics = ServerMetrics(config, hosting)
    blocks = Blocks()
    answers = Answers(hosting, metrics.answer, blocks)
    routes = Routes(answers, config.server.origins)
    listeners = Listeners(socket_folder(state_dir), config.server, routes.handle, blocks)
    metrics.listeners = listeners
    await listeners.start()
    memory = MemorySocket(socket_folder(state_dir), listeners, answers.regions)
    try:
        memory.start()
        service = await _start_grpc(config.server.grpc, answers, listeners)
    except BaseException:
        memory.stop()
        await listeners.stop(0.0)
        raise

    def end(reason: str) -> None:
        log.info("stopping because of %s", reason)
        stop.set()

    def handle(number: signal.Signals) -> None:
        if number is signal.SIGHUP:
            log.info("settings of the model server apply at its next start: SIGHUP changes nothing")
        else:
            loop.call_soon_threadsafe(end, number.name)

    call_on_signals(handle, also=(signal.SIGHUP,))
    if until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), lambda: _look_at_stdin(end))
    following = asyncio.create_task(hosting.follow())
    try:
        await stop.wait()
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        if service is not None:
            draining = asyncio.create_task(service.stop(DRAIN_S))
        await listeners.stop(DRAIN_S)
        memory.stop()
        if service is not None:
            await draining
        is_over = await hosting.cancel_long(CANCEL_S)
        await hosting.stop()
    return is_over


async def _start_grpc(address: str, answers: Answers, listeners: Listeners) -> "GrpcService | None":
    """Start the gRPC service, if the settings name an address.

    Raises:
        DeviceError: The extra is not installed, or the address cannot be used.
    """
    if not address:
        return None
    try:
        from edgepack.agent.server.grpc_service import GrpcService
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        raise DeviceError(
            f"gRPC needs the package {error.name}, which is not installed",
            found_in="server.grpc",
            remedy=install_command("grpc"),
        ) from error
    service = GrpcService(answers, listeners)
    await service.start(address)
    return service


def _look_at_stdin(end: object) -> None:
    """Stop at the end of standard input."""
    if not os.read(sys.stdin.fileno(), 1024):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        assert callable(end)
        end("the end of the agent")


class ServerMetrics:
    """Metrics of the server's process.

    Args:
        config: The agent's settings.
        hosting: The models.
    """

    def __init__(self, config: AgentConfig, hosting: Hosting) -> None:
        self._hosting = hosting
        self.listeners: Listeners | None = None
        self._resource = {
            "service.name": "edgepack-server",
            "service.namespace": config.tenant,
            "service.instance.id": config.device,
            "service.version": importlib.metadata.version("edgepack"),
            "host.arch": platform.machine(),
        }

    def answer(self, request: Request) -> Response:
        """Return the metrics in the requested format."""
        form = content_type(request.head.fields.get(b"accept", b"").decode("latin-1"))
        return Response(200, (render(self._families(), form, self._resource),), form)

    def _families(self) -> Iterator[Family]:
        requests: list[Point] = []
        waiting: list[Point] = []
        first: list[Point] = []
        further: list[Point] = []
        for name, model in sorted(self._hosting.models.items()):
            found, model_label = model.statistics.inference_stats, {"edgepack.model": name}
            for outcome, number in (
                ("success", found.success.count),
                ("fail", found.fail.count - model.rejected),
                ("queue_full", model.rejected),
            ):
                requests.append(Point({**model_label, "edgepack.outcome": outcome}, number))
            waiting.append(Point(model_label, model.busy))
            for found_ms, points in ((model.first_tokens, first), (model.further_tokens, further)):
                times = found_ms.snapshot()
                if times.count:
                    counts = tuple(bucket_counts(times))
                    points.append(Point(model_label, Distribution(counts, times.sum_ms / 1000)))
        yield family("edgepack.server.requests", requests)
        yield family("edgepack.server.active", waiting)
        yield family("gen_ai.server.time_to_first_token", first)
        yield family("gen_ai.server.time_per_output_token", further)
        if self.listeners is not None:
            yield family("edgepack.connections", self.listeners.count)
        yield family("process.memory.usage", memory_bytes())
        yield family("process.cpu.time", time.process_time())
