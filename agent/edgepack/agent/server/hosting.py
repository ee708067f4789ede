"""The models of the device in the server: opened as they come, closed as they go."""

import asyncio
import contextlib
import logging
import threading
import time
from pathlib import Path

from edgepack.agent.config import ServerConfig
from edgepack.agent.server.hosted_model import HostedModel
from edgepack.agent.server.http_messages import HttpError
from edgepack.agent.serving.following import Follower
from edgepack.agent.state.outages import describe_outage
from edgepack.agent.state.pointer import active_models, pointer_path, read_pointer
from edgepack.bundle.agent_release import AGENT_RELEASE
from edgepack.errors import EdgepackError

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks at which models are here."""
RETRY_S = 10.0
"""Seconds until a model that could not be opened is tried again."""


class Hosting:
    """Models by name; used by the event loop's thread alone.

    Args:
        state_dir: The agent's state folder.
        settings: Limits of each model.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        hung_s: Seconds after which an inference hangs, see `WatchConfig`.
    """

    def __init__(
        self, state_dir: Path, settings: ServerConfig, *, threads: int, hung_s: float
    ) -> None:
        self._state_dir, self._settings, self._threads = state_dir, settings, threads
        self._hung_s = hung_s
        self._loop = asyncio.get_running_loop()
        self._models: dict[str, HostedModel] = {}
        self._adapters: dict[str, str] = {}
        self._opening: set[str] = set()
        self._failed: dict[str, tuple[float, str]] = {}
        self._closing: set[threading.Thread] = set()
        self._is_stopping = self._has_looked = False

    @property
    def is_live(self) -> bool:
        """True if no inference hangs: a thread that hangs in a driver never comes back."""
        return not any(model.has_hung(self._hung_s) for model in self._models.values())

    @property
    def is_ready(self) -> bool:
        """True if every model of the device is open."""
        return self._has_looked and not self.pending

    @property
    def models(self) -> dict[str, HostedModel]:
        """Open models by name."""
        return self._models

    @property
    def pending(self) -> dict[str, str]:
        """Models that are not open, with the reason."""
        failed = {name: because for name, (_, because) in self._failed.items()}
        return dict.fromkeys(self._opening, "it is being opened") | failed

    def find(self, name: str) -> HostedModel:
        """Return an open model.

        Raises:
            HttpError: The model is not here, or not open.
        """
        try:
            return self._models[name]
        except KeyError:
            pass
        if name in self._failed:
            because = self._failed[name][1]
            raise HttpError(503, f"model '{name}' does not serve: {because}", retry_s=int(RETRY_S))
        if name in self._opening or self._is_installed(name):
            raise HttpError(503, f"model '{name}' is being opened", retry_s=1)
        if because := describe_outage(self._state_dir, name):
            problem = f"model {name[:100]!a} does not serve: {because}"
            raise HttpError(503, problem, retry_s=int(RETRY_S))
        adapters = (f"{one} (adapter of {base})" for one, base in self._adapters.items())
        known = ", ".join(sorted((*self._models, *self.pending, *adapters))) or "no model"
        raise HttpError(404, f"no model {name[:100]!a} is active on this device, which has {known}")

    def base_of(self, name: str) -> str:
        """Return the model that an adapter belongs to; "" for another model, or none."""
        return self._adapters.get(name, "")

    def _is_installed(self, name: str) -> bool:
        """Check whether a model is here that the next look will find."""
        with contextlib.suppress(ValueError, OSError):
            return name != AGENT_RELEASE and pointer_path(self._state_dir, name).is_file()
        return False

    async def follow(self) -> None:
        """Open and close models as they come and go, until `stop`."""
        while not self._is_stopping:
            try:
                found, adapters = await asyncio.to_thread(self._list)
            except OSError as error:
                log.warning("the models of the device cannot be listed: %s", error)
            else:
                self._adapters = adapters
                self._compare(set(found) - {AGENT_RELEASE})  # Its model is only a proof.
            await asyncio.sleep(LOOK_S)

    def _list(self) -> tuple[set[str], dict[str, str]]:
        """Return the models of the device, and the bases of its adapters by name."""
        models, adapters = set(), {}
        for name in active_models(self._state_dir):
            try:
                pointer = read_pointer(self._state_dir, name)
            except EdgepackError:
                pointer = None  # Opening the model says why.
            if pointer is not None and pointer.base:
                adapters[name] = pointer.base
            else:
                models.add(name)
        return models, adapters

    async def cancel_long(self, patience_s: float) -> bool:
        """Cancel running requests of many inferences, and return whether no request runs.

        Args:
            patience_s: How long to wait for their current inferences.
        """
        until = self._loop.time() + patience_s
        for model in self._models.values():
            model.cancel_long()
        while is_busy := any(model.busy for model in self._models.values()):
            if self._loop.time() > until:
                break
            await asyncio.sleep(0.01)
        return not is_busy

    async def stop(self) -> None:
        """Close all models, and write their statistics."""
        self._is_stopping = True
        for name in tuple(self._models):
            self._retire(name)
        while self._closing:
            self._closing = {thread for thread in self._closing if thread.is_alive()}
            await asyncio.sleep(0.01)

    def _compare(self, found: set[str]) -> None:
        now, self._has_looked = time.monotonic(), True
        for name in set(self._models) - found:
            log.info("model=%s removed", name)
            self._retire(name)
        for name in set(self._failed) - found:
            del self._failed[name]
        for name in sorted(found - set(self._models) - self._opening):
            if name not in self._failed or now >= self._failed[name][0] + RETRY_S:
                self._opening.add(name)
                threading.Thread(target=self._open, args=(name,), daemon=True).start()

    def _open(self, name: str) -> None:
        """Open a model, in a thread of its own: a provider may take long."""
        follower: Follower | None = None
        because = ""
        try:
            follower = Follower(name, self._state_dir, threads=self._threads, poll_s=None)
        except EdgepackError as error:
            because = str(error)
        except Exception as error:
            log.exception("model=%s cannot be opened", name)
            because = f"fault in edgepack: {error!r}"
        self._loop.call_soon_threadsafe(self._opened, name, follower, because)

    def _opened(self, name: str, follower: Follower | None, because: str) -> None:
        self._opening.discard(name)
        if follower is None:
            if self._failed.get(name, (0.0, ""))[1] != because:
                log.warning("model=%s does not serve: %s", name, because)
            self._failed[name] = (time.monotonic(), because)
            return
        self._failed.pop(name, None)
        self._models[name] = HostedModel(name, follower, self._settings)
        log.info("model=%s version=%s serves", name, follower.serving.pointer.bundle.version)
        if self._is_stopping:
            self._retire(name)

    def _retire(self, name: str) -> None:
        """Take a model out of service, and close the model once its requests are answered."""
        self._close_when_idle(self._models.pop(name))

    def _close_when_idle(self, model: HostedModel) -> None:
        if model.busy and not self._is_stopping:
            self._loop.call_later(0.05, self._close_when_idle, model)
        else:
            self._close(model)

    def _close(self, model: HostedModel) -> None:
        thread = threading.Thread(target=model.close, daemon=True)
        self._closing = {one for one in self._closing if one.is_alive()} | {thread}
        thread.start()
