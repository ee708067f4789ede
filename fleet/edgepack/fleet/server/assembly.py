"""The parts of a fleet, made and put together."""

import logging
import time
from contextlib import ExitStack
from functools import partial
from typing import Protocol

import msgspec

from edgepack.errors import FleetError
from edgepack.fleet.broker.access import BrokerAccess
from edgepack.fleet.broker.embedded import EmbeddedBroker
from edgepack.fleet.broker.link import Link
from edgepack.fleet.broker.links import KEEPALIVE_S, Links
from edgepack.fleet.controller.controller import Broker, Controller
from edgepack.fleet.controller.heartbeat import Heartbeat
from edgepack.fleet.controller.inbox import Inbox
from edgepack.fleet.controller.lead import Lead, LeaseElection, SingleController
from edgepack.fleet.controller.metadata import MetadataKeeper
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.database.lease import make_holder
from edgepack.fleet.database.store import Store, open_store
from edgepack.fleet.depot.depot import Depot
from edgepack.fleet.enrolment.authority import CRL_FILE, Authority
from edgepack.fleet.enrolment.device_sources import check_sources
from edgepack.fleet.enrolment.revocation_hook import RevocationHook
from edgepack.fleet.releases.cache import ReleaseCache
from edgepack.fleet.releases.folder import ReleaseFolder
from edgepack.fleet.releases.listing import list_missing
from edgepack.fleet.repository.ceremony import init
from edgepack.fleet.repository.director import Director
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.fleet.server.connections import ConnectionLimits, Connections
from edgepack.fleet.server.expiries import Expiries
from edgepack.fleet.server.fleet import Fleet
from edgepack.fleet.server.place import take_place
from edgepack.fleet.server.settings import ServeSettings
from edgepack.fleet.webhooks.delivery import Deliverer
from edgepack.wire import topics

log = logging.getLogger(__name__)


class _Part(Protocol):
    """Component with a thread of its own."""

    def start(self) -> None:
        """Start the part."""

    def stop(self) -> None:
        """Stop the part."""


def assemble(settings: ServeSettings, stack: ExitStack) -> tuple[Fleet, str]:
    """Make, connect and start all parts.

    Args:
        settings: How.
        stack: Stops the started parts, in reverse order.

    Returns:
        The fleet, and the token of its API.

    Raises:
        EdgepackError: Something cannot start; see `serve.serve`.
    """
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
    folder.protect_secrets()
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
    lead: Lead = SingleController()
    broker: Broker = link
    heartbeat = Heartbeat()
    if store.is_shared:
        lead, broker = _elected(
            settings, folder, store, holder, link, inbox, access, heartbeat, stack
        )
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
        open_authority=partial(Authority, folder.pki, certificate_days=settings.certificate_days),
        auto_enroll=settings.auto_enroll,
        lead=lead,
        heartbeat=heartbeat,
        value_s=settings.value_s,
    )
    cache = ReleaseCache(store, releases, trust, name)
    program = settings.on_revocation
    hooks = [RevocationHook(program, folder.pki / CRL_FILE)] if program is not None else []
    deliverer = Deliverer(store, settings.tenant, lead)
    parts: tuple[_Part, ...] = (depot, controller, cache, *hooks, deliverer)
    for part in parts:
        part.start()
        stack.callback(part.stop)
    connections = Connections(
        ConnectionLimits(
            total=settings.max_connections,
            per_address=settings.max_connections_per_address,
            proxies=settings.trusted_proxies,
        )
    )
    expiries = Expiries(
        repository,
        folder,
        store,
        link,
        api_certificate=settings.tls_cert,
        certificate_days=settings.certificate_days,
    )
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
        warners=(inbox.quotas, cache, *hooks, connections, expiries, lead),
        expiries=expiries,
        repository=repository,
        inbox=inbox,
        link=link,
        depot=depot,
        controller=controller,
        connections=connections,
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
    heartbeat: Heartbeat,
    stack: ExitStack,
) -> tuple[LeaseElection, Links]:
    lead = LeaseElection(
        store,
        holder=holder,
        leader_client_id=folder.leader_client_id(),
        length_s=settings.lease_s,
        may_lead=lambda: link.is_connected,
        is_working=lambda: heartbeat.is_beating,
        on_stuck=lambda: links.leave_share(),
        on_change=inbox.wake,
    )
    links = Links(
        link,
        access=lambda leader_client_id: _as(access, folder, leader_client_id),
        leader_client_id=lambda: lead.leader_client_id,
        tenant=settings.tenant,
        on_message=inbox.receive,
        on_connected=inbox.connected,
    )
    stack.callback(links.follow)
    lead.start()
    stack.callback(lead.stop)
    return lead, links


def _repository(folder: DataFolder, store: Store, releases: ReleaseFolder) -> ImageRepository:
    """Return the fleet's repository; make a missing repository, with all its keys in the folder."""
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
    password = settings.broker_password_file
    return BrokerAccess(
        url=settings.broker,
        proxy=settings.broker_proxy,
        ca_file=settings.broker_ca,
        username=settings.broker_user,
        password=password.read_text().partition("\n")[0] if password else "",
    )


def _as(access: BrokerAccess, folder: DataFolder, name: str) -> BrokerAccess:
    """Return the broker access of a controller."""
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
