"""Delivery of events to webhooks by the leader, a single message of each webhook at a time.

A message is repeated until accepted, so the receiver may get a message twice, with the same
`webhook-id`.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.controller.lead import Lead
from edgepack.fleet.database import webhooks
from edgepack.fleet.database.lease import LeadLostError
from edgepack.fleet.database.schema import WebhookRow
from edgepack.fleet.database.store import DatabaseAwayError, Store
from edgepack.fleet.database.webhooks import Message
from edgepack.fleet.webhooks import sending
from edgepack.web.deadline import WaitLimits

log = logging.getLogger(__name__)

LOOK_S = 1.0
AT_ONCE_S = 5.0
"""How long one webhook is told what waits before the database is asked again."""
WORKERS = 8
"""Webhooks that are told at the same time; those that failed before use at most half of them."""
AGENT = "edgepack-webhook"


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """Webhook with the data for sending."""

    name: str
    key: str
    url: str
    secret: str
    is_unsafe: bool


def hook_of(row: WebhookRow) -> Hook:
    """Return the webhook of a row of the database."""
    return Hook(name=row.name, key=row.key, url=row.url, secret=row.secret, is_unsafe=row.is_unsafe)


def send(hook: Hook, tenant: str, message: Message, limits: WaitLimits = sending.LIMITS) -> None:
    """Send a message once.

    Raises:
        FleetError: The receiver did not accept the message; states the reason.
    """
    message_id = f"{hook.key}_{message.source}{message.id}"
    said = {
        "type": message.type,
        "timestamp": datetime.fromtimestamp(message.at, UTC).isoformat(),
        "data": {"tenant": tenant, **message.data},
    }
    body, now = msgspec.json.encode(said), int(time.time())
    headers = {
        "content-type": "application/json",
        "User-Agent": AGENT,
        "connection": "close",
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": sending.sign(hook.secret, message_id, now, body),
    }
    try:
        target = sending.read_target(hook.url, is_unsafe=hook.is_unsafe)
        sending.find_addresses(target, is_unsafe=hook.is_unsafe)
        status = sending.post(hook.url, headers, body, is_unsafe=hook.is_unsafe, limits=limits)
    except OSError as error:
        raise FleetError(f"the receiver cannot be reached: {sending.why(error)}") from error
    if not 200 <= status < 300:
        moved = ", and redirects are not followed" if 300 <= status < 400 else ""
        raise FleetError(f"the receiver answered HTTP status {status}{moved}")


class Deliverer:
    """Checks every second for due messages.

    Args:
        store: The fleet's database.
        tenant: Tenant of the devices.
        lead: Whether this controller leads.
    """

    def __init__(self, store: Store, tenant: str, lead: Lead) -> None:
        self._store, self._tenant, self._lead = store, tenant, lead
        self._stopping = threading.Event()
        self._busy: dict[str, bool] = {}
        """Webhooks that are told now, and whether their last message failed."""
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="webhook")
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)

    def start(self) -> None:
        """Start, and deliver the messages that earlier controllers left."""
        self._thread.start()

    def stop(self) -> None:
        """End after the messages in hand."""
        self._stopping.set()
        self._thread.join()
        self._workers.shutdown(cancel_futures=True)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                if self._lead.is_held:
                    self.look()
            except (DatabaseAwayError, LeadLostError) as error:
                log.warning("webhooks wait because=%s", error.problem)
            except Exception:  # the outermost loop of this thread: it goes on
                log.exception("webhooks stumbled")

    def look(self) -> None:
        """Submit pending messages to workers; skip webhooks with a delivery in progress."""
        now = self._store.now()
        with self._lock:
            busy = frozenset(self._busy)  # what these have told by now is not written down yet
        with self._store.reading() as session:
            rows = [
                row
                for row in webhooks.all_of(session)
                if row.next_at <= now and row.name not in busy
            ]
            found = [(hook_of(row), webhooks.waiting(session, row)) for row in rows]
            idle = [
                hook.name
                for row, (hook, messages) in zip(rows, found, strict=True)
                if not messages and webhooks.is_far_behind(session, row)
            ]
        if idle:
            with self._leading() as session:
                for name in idle:
                    self._pass_over(session, name)
        failed = {row.name: row.failures > 0 for row in rows}
        for hook, messages in sorted(found, key=lambda one: failed[one[0].name]):
            if messages and self._take_turn(hook.name, has_failed=failed[hook.name]):
                self._workers.submit(self._tell, hook, messages)

    def _take_turn(self, name: str, *, has_failed: bool) -> bool:
        """Reserve a worker; hanging receivers leave half of the workers to other receivers."""
        with self._lock:
            slow = sum(self._busy.values())
            if len(self._busy) >= WORKERS or (has_failed and 2 * slow >= WORKERS):
                return False
            self._busy[name] = has_failed
            return True

    @contextmanager
    def _leading(self) -> Iterator[Session]:
        """Yield a transaction of the leader; raise as `Lead.check` does."""
        with self._store.transaction() as session:
            self._lead.check(session)
            yield session

    def _pass_over(self, session: Session, name: str) -> None:
        row = webhooks.find(session, name)
        if not webhooks.waiting(session, row):
            webhooks.pass_over(session, row)

    def _tell(self, hook: Hook, messages: Sequence[Message]) -> None:
        until = time.monotonic() + AT_ONCE_S
        try:
            for message in messages:
                if self._stopping.is_set() or time.monotonic() > until:
                    return
                if not self._tell_one(hook, message):
                    return
        except (DatabaseAwayError, LeadLostError) as error:
            log.warning("webhook=%s waits because=%s", hook.name, error.problem)
        except Exception:  # the outermost frame of ours in a worker
            log.exception("webhook=%s stumbled", hook.name)
        finally:
            with self._lock:
                self._busy.pop(hook.name, None)

    def _tell_one(self, hook: Hook, message: Message) -> bool:
        try:
            send(hook, self._tenant, message)
        except FleetError as error:
            log.warning("webhook=%s %s because=%s", hook.name, message.type, error.problem)
            with self._leading() as session:
                webhooks.note_failed(session, hook.name, message, error.problem, self._store.now())
            return False
        with self._leading() as session:
            webhooks.note_delivered(session, hook.name, message)
        return True
