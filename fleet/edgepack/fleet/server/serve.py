"""Running a fleet: all parts are made and put together here."""

import gc
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import uvicorn

from edgepack.bandwidth import UNLIMITED, Bandwidth
from edgepack.errors import FleetError
from edgepack.fleet.broker.access import BrokerAccess
from edgepack.fleet.broker.embedded import EmbeddedBroker
from edgepack.fleet.broker.link import Link
from edgepack.fleet.broker.links import KEEPALIVE_S, Links
from edgepack.fleet.controller.controller import Broker, Controller
from edgepack.fleet.controller.inbox import Inbox
from edgepack.fleet.controller.lead import Elected, Lead, Sole
from edgepack.fleet.controller.metadata import MetadataKeeper
from edgepack.fleet.controller.pulse import Pulse
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.database.lease import make_holder
from edgepack.fleet.database.store import Store, open_store
from edgepack.fleet.depot.depot import Depot
from edgepack.fleet.enrolment.authority import CERTIFICATE_DAYS, CRL_FILE, Authority
from edgepack.fleet.enrolment.device_sources import check_sources
from edgepack.fleet.enrolment.revocation_hook import RevocationHook
from edgepack.fleet.oidc.provider import Provider
from edgepack.fleet.oidc.settings import read_settings
from edgepack.fleet.releases.cache import ReleaseCache
from edgepack.fleet.releases.folder import ReleaseFolder
from edgepack.fleet.releases.listing import list_missing
from edgepack.fleet.repository.ceremony import init
from edgepack.fleet.repository.director import Director
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.fleet.server.access import Access
from edgepack.fleet.server.api import Pages, make_app
from edgepack.fleet.server.fleet import Fleet
from edgepack.fleet.server.listening import check_tls, open_listener
from edgepack.fleet.server.place import take_place
from edgepack.fleet.server.quiet_server import QuietServer
from edgepack.fleet.webhooks.delivery import Deliverer
from edgepack.wire import topics

log = logging.getLogger(__name__)

COLLECT_AFTER = 20_000
"""New objects after which the garbage collector looks at them, 700 by itself: a batch of messages
makes more, and drops them together."""
SWITCH_S = 0.0005
"""After so long a thread lets the others go on: Python's 5 ms, several times over, are what people
wait for a page while the controller is busy."""


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve.

    Attributes:
        data: The fleet's folder.
        cache: Where the files of releases lie; None is the fleet's folder.
        database: See `open_store`; "" means SQLite in the folder.
        broker: URL of a broker; "" means the embedded one.
        broker_proxy: URL of an HTTP proxy that leads to it.
        broker_ca: PEM of who signed its certificate; None is the fleet's own authority.
        broker_port: Port of the embedded one.
        broker_user, broker_password: For brokers with passwords.
        host, port: Where the API listens.
        tls_cert, tls_key: PEM files of its certificate and key; None for plain HTTP.
        tenant: Whose devices.
        trust: Files of public keys to trust from now on.
        auto_enroll: Takes in any device that reports; embedded broker only.
        certificate_days: How long the certificates last that devices get.
        lease_s: Of several controllers on a PostgreSQL another one leads so long after the leader
            died.
        bandwidth: What the depot may send a second.
        on_revocation: Program that tells the broker of revoked certificates; None for none.
        device_sources: URLs of what has bundles beside the broker: devices that are enrolled from
            now on ask there first.
        oidc: TOML file about the OpenID Connect provider that people log in at; None for none.
    """

    data: Path
    cache: Path | None = None
    database: str = ""
    broker: str = ""
    broker_proxy: str = ""
    broker_ca: Path | None = None
    broker_port: int = 1883
    broker_user: str = ""
    broker_password: str = ""
    host: str = "127.0.0.1"
    port: int = 8600
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tenant: str = "default"
    trust: Sequence[Path] = ()
    auto_enroll: bool = False
    lease_s: float = 5.0
    certificate_days: int = CERTIFICATE_DAYS
    bandwidth: Bandwidth = UNLIMITED
    on_revocation: Path | None = None
    device_sources: tuple[str, ...] = ()
    oidc: Path | None = None


class MakePages(Protocol):
    """Makes the pages that are served beside the API."""

    def __call__(
        self, fleet: Fleet, access: Access, *, is_tls: bool, is_stopping: Callable[[], bool]
    ) -> Pages:
        """The pages of a fleet; see `edgepack.fleet.dashboard.routes.dashboard_routes`."""


def serve(
    settings: ServeSettings, make_pages: MakePages, ready: Callable[[Fleet, str], None]
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        settings: How.
        make_pages: Makes the pages that are served beside the API.
        ready: Told once all is up: the fleet and the API's URL.

    Raises:
        EdgepackError: Something cannot start: the folder is in use, the port is taken, the
            database or the broker cannot be reached.
    """
    check_tls(settings.tls_cert, settings.tls_key)
    sys.setswitchinterval(SWITCH_S)
    with ExitStack() as stack:
        fleet, token = _assemble(settings, stack)
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
            )
        )
        # uvicorn stops at a signal, then raises it again for whoever was there before it: us.
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.getsignal(number))
            signal.signal(number, lambda *_: None)
        ready(fleet, url)
        _settle_collector()
        server.run(sockets=[listener])
        log.info("the fleet stops")


def _settle_collector() -> None:
    """Python's garbage collector looks at what was there from the start no more.

    To look at all modules again and again was a seventh of a rollout's processor time, and nothing
    else ran meanwhile: 80 ms at a time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def _provider(settings: ServeSettings) -> Provider | None:
    return Provider(*read_settings(settings.oidc)) if settings.oidc is not None else None


def _assemble(settings: ServeSettings, stack: ExitStack) -> tuple[Fleet, str]:
    try:
        topics.check_name(settings.tenant, "tenant")
    except ValueError as error:
        raise FleetError(str(error), found_in="--tenant", remedy="--tenant default") from error
    if settings.auto_enroll and settings.broker:
        raise FleetError(
            "--auto-enroll would take in any device that reaches a shared broker",
            remedy="edgepack fleet enroll DEVICE --group GROUP -o FOLDER",
        )
    check_sources(settings.device_sources)
    folder = DataFolder(settings.data)
    place = take_place(folder, settings.database, stack)
    name = folder.controller(place)
    trust = folder.trust(settings.trust)
    holder = make_holder(name)
    store = open_store(settings.database or folder.database_url, holder)
    stack.callback(store.close)
    kept = settings.cache or folder.root
    releases = ReleaseFolder(kept / "releases", kept / "incoming" / name)
    repository = _repository(folder, store, releases)
    access = _broker(settings, folder, stack)
    inbox = Inbox(settings.tenant)
    link = Link(
        _as(access, folder, name),
        client_id=name,
        subscriptions=() if store.is_shared else (topics.controller_subscription(settings.tenant),),
        trial=topics.desired(settings.tenant, name),
        on_message=inbox.receive,
        on_connected=inbox.connected,
        keepalive_s=KEEPALIVE_S,
    )
    link.open()
    stack.callback(link.close)
    lead: Lead = Sole()
    broker: Broker = link
    pulse = Pulse()
    if store.is_shared:
        lead, broker = _elected(settings, folder, store, holder, link, inbox, access, pulse, stack)
    depot = Depot(
        tenant=settings.tenant,
        releases=releases,
        send=link.send_chunks,
        bandwidth=settings.bandwidth,
    )
    inbox.take_need = depot.take_directly
    controller = Controller(
        store=store,
        tenant=settings.tenant,
        inbox=inbox,
        broker=broker,
        depot=depot,
        metadata=MetadataKeeper(
            repository, settings.tenant, publish=broker.publish_retained, send=broker.publish
        ),
        sign=Director(repository, settings.tenant).sign,
        is_released=repository.is_listed,
        open_authority=(
            partial(Authority, folder.pki, certificate_days=settings.certificate_days)
            if access.is_tls
            else None
        ),
        auto_enroll=settings.auto_enroll,
        lead=lead,
        pulse=pulse,
    )
    depot.start()
    stack.callback(depot.stop)
    controller.start()
    stack.callback(controller.stop)
    cache = ReleaseCache(store, releases, trust, name)
    cache.start()
    stack.callback(cache.stop)
    hooks = []
    if settings.on_revocation is not None:
        hooks = [RevocationHook(settings.on_revocation, folder.pki / CRL_FILE)]
    for hook in hooks:
        hook.start()
        stack.callback(hook.stop)
    deliverer = Deliverer(store, settings.tenant, lead)
    deliverer.start()
    stack.callback(deliverer.stop)
    fleet = Fleet(
        name=name,
        tenant=settings.tenant,
        broker_url=access.url,
        broker_is_tls=access.is_tls,
        certificate_days=settings.certificate_days,
        device_sources=settings.device_sources,
        folder=folder,
        trust=trust,
        store=store,
        releases=releases,
        warners=(cache, *hooks),
        repository=repository,
        inbox=inbox,
        link=link,
        depot=depot,
        controller=controller,
    )
    return fleet, folder.token()


def _elected(
    settings: ServeSettings,
    folder: DataFolder,
    store: Store,
    holder: str,
    link: Link,
    inbox: Inbox,
    access: BrokerAccess,
    pulse: Pulse,
    stack: ExitStack,
) -> tuple[Elected, Links]:
    lead = Elected(
        store,
        holder=holder,
        voice=folder.voice(),
        length_s=settings.lease_s,
        may_lead=lambda: link.is_connected,
        is_working=lambda: pulse.is_there,
        on_stuck=lambda: links.leave_share(),
        on_change=inbox.wake,
    )
    links = Links(
        link,
        access=lambda voice: _as(access, folder, voice),
        voice=lambda: lead.voice,
        tenant=settings.tenant,
        on_message=inbox.receive,
        on_connected=inbox.connected,
    )
    stack.callback(links.follow)
    lead.start()
    stack.callback(lead.stop)
    return lead, links


def _repository(folder: DataFolder, store: Store, releases: ReleaseFolder) -> ImageRepository:
    """The fleet's repository; one that is not there is made, with all its keys in the folder."""
    repository = ImageRepository(folder.tuf)
    with repository.lock():  # Another controller may begin at the same moment.
        if not repository.is_there:
            init(repository, time.time())
    is_new = repository.is_new
    repository.renew()
    if is_new:  # Later on, what is not listed was withdrawn, or waits for its publisher.
        with store.reading() as session:
            for bundle in list_missing(session, releases, repository):
                log.warning("bundle=%s is not released: its publisher must sign it", bundle.digest)
    return repository


def _broker(settings: ServeSettings, folder: DataFolder, stack: ExitStack) -> BrokerAccess:
    if not settings.broker:
        broker = EmbeddedBroker(port=settings.broker_port, folder=settings.data)
        broker.start()
        stack.callback(broker.stop)
        return BrokerAccess(url=broker.url)
    return BrokerAccess(
        url=settings.broker,
        proxy=settings.broker_proxy,
        ca_file=settings.broker_ca,
        username=settings.broker_user,
        password=settings.broker_password,
    )


def _as(access: BrokerAccess, folder: DataFolder, name: str) -> BrokerAccess:
    """How a controller of that name gets in."""
    if not access.is_tls:
        return access
    authority = Authority(folder.pki)
    is_further = name != folder.controller()
    certificate, key = authority.controller_files(name, is_further=is_further)
    return msgspec.structs.replace(
        access,
        ca_file=access.ca_file or authority.ca_file,
        cert_file=certificate,
        key_file=key,
    )
