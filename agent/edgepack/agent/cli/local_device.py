"""The device of a command that changes the state: its settings, bundles, and orders.

The running agent carries out the orders; if no agent runs, this process does.
"""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from edgepack.agent.cli.options import log_to_stderr
from edgepack.agent.cli.owner import become_owner, user_name
from edgepack.agent.cli.trusting import check_released, load_trust
from edgepack.agent.config import AgentConfig, read_config
from edgepack.agent.hooks.strays import adopt_strays, end_strays
from edgepack.agent.state.lock import UNPACKED, hold_folder, is_in_use, lock_state_dir
from edgepack.agent.state.order_socket import (
    Chunk,
    LocalOrder,
    OrderEnd,
    Progress,
    connect_to_agent,
    encode_packet,
    receive,
)
from edgepack.agent.update.local_install import LocalLink, carry_out, local_offer
from edgepack.agent.update.models import Models
from edgepack.bundle.agent_release import AGENT_RELEASE
from edgepack.bundle.chunks import open_regular
from edgepack.bundle.forms import open_bundle
from edgepack.bundle.verify import VerifiedBundle
from edgepack.durable import disk_remedy
from edgepack.errors import DeviceError, TransferError
from edgepack.wire.orders import ModelOrder
from edgepack.wire.transfers import Need

log = logging.getLogger(__name__)

START_S, RETURN_S = 5.0, 20.0
"""How long a command waits for an agent that holds the folder, and for one that has stopped."""
TRIAL_S = 300.0
"""How long a command waits for the next start of an agent that updates itself."""
RETRY_S = 0.2
STEP_S = 30.0
"""How long the agent may take to accept a connection or a packet."""


class LocalDevice:
    """This device.

    Args:
        config: The agent's settings.
        config_path: Their file.
        stack: Holds the state folder while no agent runs.
        archive: The opened bundle.

    Attributes:
        state_dir: The agent's state folder.
        is_alone: Whether no agent runs.
    """

    def __init__(
        self,
        config: AgentConfig,
        config_path: Path,
        stack: contextlib.ExitStack,
        archive: BinaryIO | None = None,
    ) -> None:
        self._config, self._config_path = config, config_path
        self._stack, self._archive = stack, archive
        self.state_dir = Path(config.state_dir)
        self.is_alone = self._enter(START_S)

    @contextlib.contextmanager
    def verified(self, bundle: Path, metadata: str | None = None) -> Iterator[VerifiedBundle]:
        """Yield a bundle, a folder or an archive, that this device may install.

        Args:
            bundle: The bundle.
            metadata: Folder or URL of the fleet's metadata; None looks next to the bundle.

        Raises:
            EdgepackError: The bundle is damaged, not trusted or not released.
        """
        with (
            open_bundle(
                bundle, within=self.state_dir, prefix=UNPACKED, archive=self._archive
            ) as folder,
            hold_folder(folder.parent if self._is_unpacked(folder) else folder),
        ):
            found = load_trust(self._config).check_folder(folder)
            ref = local_offer(found, soak_s=0.0, rollback=False).bundle
            check_released(self._config, ref, metadata, bundle_path=bundle, saves=self.is_alone)
            yield found

    def _is_unpacked(self, folder: Path) -> bool:
        return folder.parent.name.startswith(UNPACKED)

    def carry_out(self, link: LocalLink, name: str, order: ModelOrder) -> None:
        """Execute an order to its end, without changes to the device's other models.

        An agent that ends meanwhile gets the order again when it has started. If no agent starts,
        this process continues; only an agent can say whether its own release runs.

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
            is_own = name == AGENT_RELEASE
            wait_s = TRIAL_S if is_own else RETURN_S
            log.info("the agent has stopped; waiting up to %g s for its next start", wait_s)
            if not self._has_returned(wait_s):
                if is_own:
                    raise DeviceError(
                        f"no agent has started within {wait_s:g} s",
                        remedy="start the agent, which continues the update; edgepack-agent status",
                    )
                self.is_alone = self._enter(START_S)
        carry_out(_models(self._config, self._config_path, link), link, name, order)

    def _has_returned(self, wait_s: float) -> bool:
        """Return True as soon as an agent takes orders again, False after the time."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            time.sleep(RETRY_S)
            with contextlib.suppress(OSError, DeviceError):
                connect_to_agent(self.state_dir, STEP_S).close()
                return True
        return False

    def _enter(self, wait_s: float) -> bool:
        """Hold the state folder; return False if an agent holds the folder and takes orders.

        Raises:
            DeviceError: Another process holds the folder and takes no orders, or the folder cannot
                be used.
        """
        until = time.monotonic() + wait_s
        while True:
            try:
                self._stack.enter_context(lock_state_dir(self.state_dir, "command"))
            except DeviceError as error:
                if not is_in_use(error):
                    raise
                with contextlib.suppress(OSError):
                    connect_to_agent(self.state_dir, STEP_S).close()
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
        with connect_to_agent(self.state_dir, STEP_S) as peer:
            peer.send(encode_packet(LocalOrder(name=name, order=order)))
            peer.settimeout(None)

            def send_chunk(sha256: str, index: int, content: bytes) -> None:
                chunk = Chunk(sha256=sha256, index=index, content=content)
                with contextlib.suppress(OSError):  # The agent has said why, if it has ended.
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
def local_device(config_path: Path, bundle: Path | None = None) -> Iterator[LocalDevice]:
    """Yield the device, with its settings.

    Root continues as the owner of the state folder. SIGTERM unwinds the running work, so that no
    probe and no hook stays behind.

    Args:
        config_path: The agent's settings.
        bundle: A bundle to open beforehand, since the owner may not be able to read the file.

    Raises:
        EdgepackError: Another process than an agent holds the state folder, or the folder, the
            settings or the bundle cannot be used.
    """
    log_to_stderr(verbose=False)
    adopt_strays()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    config = read_config(config_path)
    with contextlib.ExitStack() as stack:
        archive = None
        if bundle is not None and os.geteuid() == 0 and bundle.is_file():
            archive = stack.enter_context(open_regular(bundle.resolve()))
        become_owner(Path(config.state_dir))
        try:
            yield LocalDevice(config, config_path, stack, archive)
        except OSError as error:
            raise disk_error(error, "the agent's state", config.state_dir) from error
        finally:
            end_strays()


def disk_error(error: OSError, what: str, place: str = "") -> DeviceError:
    """Return the error for a person after a file could not be read or written."""
    if isinstance(error, PermissionError):
        user = user_name(os.geteuid())
        return DeviceError(
            f"user {user}, the owner of the agent's state, may not read or write a file",
            found_in=str(error.filename or place) or None,
            remedy=f"give user {user} access, for example with a copy in /tmp",
        )
    return DeviceError(
        f"{what} cannot be read or written: {error.strerror or error}",
        found_in=str(error.filename or place) or None,
        remedy=f"{disk_remedy(error)}; the serving release is unchanged",
    )


def _models(config: AgentConfig, config_path: Path, link: LocalLink) -> Models:
    from edgepack.agent.cli.assembly import assemble_models, make_agent_installer, open_telemetry

    installer = make_agent_installer(config_path, is_connected=None, restart=link.end)
    models = assemble_models(config, link, open_telemetry(config), installer=installer)
    models.start()
    return models
