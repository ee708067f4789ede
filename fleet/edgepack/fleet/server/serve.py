"""Fleet server, until ordered to stop."""

import gc
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import msgspec
import uvicorn

from edgepack.fleet.oidc.provider import Provider
from edgepack.fleet.oidc.settings import read_settings
from edgepack.fleet.server.access import Access
from edgepack.fleet.server.api import Pages, make_app
from edgepack.fleet.server.assembly import assemble
from edgepack.fleet.server.connections import Connections
from edgepack.fleet.server.descriptors import count_open, fit_connections, raise_descriptor_limit
from edgepack.fleet.server.fleet import Fleet
from edgepack.fleet.server.listening import check_tls, open_listener
from edgepack.fleet.server.metrics import with_exporter
from edgepack.fleet.server.quiet_server import QuietServer
from edgepack.fleet.server.settings import ServeSettings

log = logging.getLogger(__name__)

COLLECT_AFTER = 20_000
"""New objects after which the garbage collector looks at them, 700 by itself: a batch of messages
makes more, and drops them together."""
SWITCH_S = 0.0005
"""After so long a thread lets the others go on: Python's 5 ms, several times over, are what people
wait for a page while the controller is busy."""


SHUTDOWN_S = 10
"""How long requests under way keep a server that is told to stop."""


class MakePages(Protocol):
    """Makes the pages that are served in addition to the API."""

    def __call__(
        self, fleet: Fleet, access: Access, *, is_tls: bool, is_stopping: Callable[[], bool]
    ) -> Pages:
        """Return the pages of a fleet; see `edgepack.fleet.dashboard.routes.dashboard_routes`."""


def serve(
    settings: ServeSettings, make_pages: MakePages, ready: Callable[[Fleet, str], None]
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        settings: How.
        make_pages: Makes the pages that are served in addition to the API.
        ready: Called with once all is up: the fleet and the API's URL.

    Raises:
        EdgepackError: Something cannot start: the folder is in use, the port is taken, the database
            or the broker cannot be reached.
    """
    check_tls(settings.tls_cert, settings.tls_key)
    descriptors = raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_S)
    with ExitStack() as stack:
        fleet, token = assemble(settings, stack)
        fleet = with_exporter(fleet, settings.otlp)
        if fleet.exporter is not None:
            fleet.exporter.start()
            stack.callback(fleet.exporter.stop)
        listener = stack.enter_context(open_listener(settings.host, settings.port))
        is_tls = settings.tls_cert is not None
        scheme = "https" if is_tls else "http"
        url = f"{scheme}://{settings.host}:{listener.getsockname()[1]}"
        access = Access(fleet.store, token, _provider(settings))
        server: QuietServer | None = None

        def is_stopping() -> bool:
            return server is not None and server.should_exit

        pages = make_pages(fleet, access, is_tls=is_tls, is_stopping=is_stopping)
        app = make_app(fleet, access, pages)
        _fit(fleet.connections, descriptors)
        server = QuietServer(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                timeout_graceful_shutdown=SHUTDOWN_S,
            ),
            listener,
            fleet.connections,
        )
        # uvicorn stops at a signal, then raises it again for whoever was there before it: us.
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.getsignal(number))
            signal.signal(number, lambda *_: None)
        ready(fleet, url)
        _settle_collector()
        server.run()
        log.info("the fleet stops")


def _settle_collector() -> None:
    """Exclude the present objects from Python's garbage collector.

    To look at all modules again and again was a seventh of a rollout's processor time, and nothing
    else ran meanwhile: 80 ms at a time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def _fit(connections: Connections, descriptors: int) -> None:
    """Lower the number of connections to leave descriptors for broker and database."""
    limits = connections.limits
    total = fit_connections(limits.total, descriptors, count_open())
    if total < limits.total:
        log.warning(
            "connections=%d of %d because=the process may open %d files: raise it (ulimit -n, or "
            "LimitNOFILE= of the service)",
            total,
            limits.total,
            descriptors,
        )
        connections.limits = msgspec.structs.replace(limits, total=total)


def _provider(settings: ServeSettings) -> Provider | None:
    return Provider(*read_settings(settings.oidc)) if settings.oidc is not None else None
