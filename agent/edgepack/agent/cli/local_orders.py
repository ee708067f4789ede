"""Orders of a command: carried out by the running agent, or by this process if no agent runs."""

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

from edgepack.agent.config import AgentConfig
from edgepack.agent.state.lock import is_in_use, lock_state_dir
from edgepack.agent.state.order_socket import (
    Chunk,
    LocalOrder,
    OrderEnd,
    Progress,
    connect_to_agent,
    encode_packet,
    receive,
)
from edgepack.agent.update.local_install import LocalLink, carry_out
from edgepack.agent.update.models import Models
from edgepack.errors import DeviceError, TransferError
from edgepack.wire.messages import ModelOrder, Need

log = logging.getLogger(__name__)

START_S, RETURN_S = 5.0, 60.0
"""How long a command waits for an agent that holds the folder, and for one that has stopped."""
RETRY_S = 0.2
STEP_S = 30.0
"""How long the agent may take to accept a connection or a packet."""


class LocalOrders:
    """Ways to carry out orders on this device.

    Args:
        config: The agent's settings.
        stack: Holds the state folder while no agent runs.
    """

    def __init__(self, config: AgentConfig, stack: contextlib.ExitStack) -> None:
        self._config, self._stack = config, stack
        self._state_dir = Path(config.state_dir)
        self.is_alone = self._enter(START_S)

    def carry_out(self, link: LocalLink, name: str, order: ModelOrder) -> None:
        """Execute an order to its end, without changes to the device's other models.

        An agent that is killed meanwhile gets the order again when it has started; if no agent
        starts, this process continues.

        Raises:
            DeviceError: The order failed; the message has the reason, and the serving release is
                unchanged.
        """
        while not self.is_alone:
            try:
                if self._is_carried_out_by_agent(link, name, order):
                    return
            except KeyboardInterrupt:
                raise DeviceError(
                    "interrupted; the running agent continues the order if all files are there",
                    remedy="edgepack-agent status",
                ) from None
            except (OSError, TransferError) as error:
                log.debug("the connection to the agent ended: %s", error)
            log.info("the agent has stopped; waiting for its next start")
            time.sleep(RETRY_S)
            self.is_alone = self._enter(RETURN_S)
        carry_out(_models(self._config, link), link, name, order)

    def _enter(self, wait_s: float) -> bool:
        """Hold the state folder; return False if an agent holds the folder and takes orders.

        Raises:
            DeviceError: Another process holds the folder and takes no orders, or the folder cannot
                be used.
        """
        until = time.monotonic() + wait_s
        while True:
            try:
                self._stack.enter_context(lock_state_dir(self._state_dir))
            except DeviceError as error:
                if not is_in_use(error):
                    raise
                with contextlib.suppress(OSError):
                    connect_to_agent(self._state_dir, STEP_S).close()
                    return False
                if time.monotonic() > until:
                    raise
                time.sleep(RETRY_S)
            else:
                return True

    def _is_carried_out_by_agent(self, link: LocalLink, name: str, order: ModelOrder) -> bool:
        """Return True if the agent carried out the order; False if the agent ended.

        Raises:
            DeviceError: The order failed.
            OSError, TransferError: The connection failed.
        """
        with connect_to_agent(self._state_dir, STEP_S) as peer:
            peer.send(encode_packet(LocalOrder(name=name, order=order)))
            peer.settimeout(None)

            def send_chunk(sha256: str, index: int, content: bytes) -> None:
                chunk = Chunk(sha256=sha256, index=index, content=content)
                peer.send(encode_packet(chunk))

            while (packet := receive(peer)) is not None:
                if isinstance(packet, Need):
                    link.ask(packet)
                    link.deliver(send_chunk)
                elif isinstance(packet, Progress):
                    log.info("model=%s state=%s because=%s", name, packet.state, packet.because)
                elif isinstance(packet, OrderEnd):
                    if packet.problem:
                        raise DeviceError(packet.problem, remedy=packet.remedy or None)
                    return True
        return False


@contextlib.contextmanager
def local_orders(config: AgentConfig) -> Iterator[LocalOrders]:
    """Yield the way to carry out orders on this device.

    Raises:
        DeviceError: Another process than an agent holds the state folder, or the folder cannot be
            used.
    """
    with contextlib.ExitStack() as stack:
        yield LocalOrders(config, stack)


def _models(config: AgentConfig, link: LocalLink) -> Models:
    from edgepack.agent.cli.assembly import assemble_models, open_telemetry

    models = assemble_models(config, link, open_telemetry(config))
    models.start()
    return models
