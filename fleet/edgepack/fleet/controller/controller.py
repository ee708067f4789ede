"""The controller: takes down what devices say, answers them, and moves rollouts on.

Messages come in on paho's thread, which only puts them into a bounded queue. One thread takes
them out in batches, each a transaction; what is to be published goes out after the commit. A
message that cannot be read or that breaks something is dropped alone, counted and logged.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from edgepack.errors import TransferError
from edgepack.fleet.controller.inbox import Inbox, Incoming
from edgepack.fleet.controller.intake import Intake, finish
from edgepack.fleet.database import audit, devices, latency, records
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.store import DatabaseAwayError, Store
from edgepack.fleet.depot.depot import Depot
from edgepack.fleet.rollouts import execution
from edgepack.wire import topics

log = logging.getLogger(__name__)

STEP_S = 0.5
"""How often rollouts are looked at, at least, while one is RUNNING."""
IDLE_STEP_S = 5.0
"""The same while none is: who starts one wakes the controller."""
FORGET_S = 3600.0


class Gathering(NamedTuple):
    """How long a message waits for others, seconds: a transaction for each would cost ten times.

    Attributes:
        idle_s: While no rollout is RUNNING; nobody waits for an answer then.
        rolling_s: While one is.
    """

    idle_s: float = 1.0
    rolling_s: float = 0.2


class Controller:
    """Answers devices and moves rollouts on, in a thread of its own.

    Args:
        store: The fleet's database.
        tenant: Whose devices.
        inbox: Where messages come in.
        publish: Publishes a retained `desired` of a device; never waits.
        look_after: Sees to it that the connection works; called now and then.
        depot: Sends chunks.
        auto_enroll: Takes in any device that reports (only with the embedded broker).
        gathering: How long messages wait for others.
    """

    def __init__(
        self,
        *,
        store: Store,
        tenant: str,
        inbox: Inbox,
        publish: Callable[[str, bytes], None],
        look_after: Callable[[], None],
        depot: Depot,
        auto_enroll: bool,
        gathering: Gathering = Gathering(),  # noqa: B008 (it cannot be changed)
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._inbox = inbox
        self._publish, self._look_after = publish, look_after
        self._depot = depot
        self._gathering = gathering
        self._is_rolling = True
        self._intake = Intake(auto_enroll=auto_enroll)
        self._stopping = threading.Event()
        self._stepped_at = self._forgot_at = 0.0
        self._batch: list[Incoming] = []
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    def start(self) -> None:
        """Starts; rollouts that were under way when an earlier controller ended go on."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the batch in hand."""
        self._stopping.set()
        self._inbox.wake()
        self._thread.join(timeout=10)

    def publish(self, publications: Iterable[Publication]) -> None:
        """Tells devices what is wanted of them; what it says must be durable already."""
        for publication in publications:
            topic = topics.desired(self._tenant, publication.device)
            self._publish(topic, publication.payload)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.turn()
            except DatabaseAwayError as error:
                log.warning("the controller waits because=%s", error.problem)
                self._stopping.wait(1.0)
            except Exception:  # the outermost loop of this thread: the controller goes on
                log.exception("the controller stumbled")
                self._stopping.wait(1.0)

    def turn(self) -> None:
        """Handles what came in, moves rollouts on, and publishes what follows.

        Raises:
            DatabaseAwayError: The database does not answer; the messages in hand are kept.
        """
        self._batch = self._batch or self._take()
        try:
            self._handle(self._batch)
        except DatabaseAwayError:
            raise
        except Exception:  # one message broke the batch: find it, and drop it alone
            log.exception("a batch of %d messages is taken one by one", len(self._batch))
            while self._batch:
                self._handle_alone(self._batch[0])
                del self._batch[0]
        self._batch = []
        now = time.time()
        # Under a flood of messages rollouts are looked at now and then, otherwise at once.
        if self._inbox.is_empty or now - self._stepped_at >= STEP_S:
            self._stepped_at = now
            self._look_after()
            with self._store.transaction() as session:
                publications, running = execution.step(session, now)
                if now - self._forgot_at >= FORGET_S:
                    self._forgot_at = now
                    records.forget_old(session, now)
                    latency.forget_old(session, now)
                    audit.forget_old(session, now)
            self._is_rolling = running > 0
            self.publish(publications)
        if self._inbox.reconnected.is_set():
            self._inbox.reconnected.clear()
            with self._store.reading() as session:
                publications = devices.all_unsettled(session)
            self.publish(publications)

    def _take(self) -> list[Incoming]:
        if self._is_rolling:
            return self._inbox.take(STEP_S, self._gathering.rolling_s)
        return self._inbox.take(IDLE_STEP_S, self._gathering.idle_s)

    def _handle_alone(self, message: Incoming) -> None:
        try:
            self._handle([message])
        except DatabaseAwayError:
            raise
        except Exception:  # whatever a device sent, the controller goes on
            self._inbox.counters["broken"] += 1
            log.exception("device=%s %s dropped", message.device, message.kind)

    def _handle(self, messages: list[Incoming]) -> None:
        if not messages:
            return
        counters: Counter[str] = Counter()
        with self._store.transaction() as session:
            batch = self._intake.begin(session, messages, time.time())
            for message in messages:
                try:
                    counters[self._intake.take(batch, message)] += 1
                except TransferError as error:
                    counters["malformed"] += 1
                    reason = f"malformed {message.kind}"
                    self._inbox.quotas.note_dropped(message.device, reason, error.problem)
            finish(batch)
        self._inbox.counters.update(counters)
        self.publish(batch.publications)
        for device, need in batch.needs:
            self._depot.take(device, need)
