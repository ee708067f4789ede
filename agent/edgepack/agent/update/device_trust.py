"""Trust of a device in its fleet: the image repository, and the director's orders.

Both are verified before any part is stored. An order is carried out if the director signed the
order and the repository lists its bundle; the update verifies the bundle's own signature.
"""

import logging
from collections.abc import Callable

import msgspec

from edgepack.agent.update.metadata_pool import MetadataPool
from edgepack.errors import TrustError
from edgepack.trust.listing import read_listing, target_path
from edgepack.trust.orders import SignedOrders, verify_orders
from edgepack.trust.repository import Cache, TrustedRepository
from edgepack.trust.roles import DIRECTOR, file_name
from edgepack.trust.sources import Fetch, fetch_nothing
from edgepack.wire.orders import MAX_STEP, BundleRef, Desired, RunModel
from edgepack.wire.reports import Trusted

log = logging.getLogger(__name__)

ORDERS_FILE = file_name(DIRECTOR)
MAX_ORDERS_BYTES = 256 * 1024
FIRST_METADATA_S = 60.0
"""Seconds that a device without any metadata waits for the first before it reports a failure."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Decision about a director's order.

    Attributes:
        desired: Orders of this device.
        refusals: By model: the reason for a rejected order.
    """

    desired: Desired
    refusals: dict[str, str] = {}


class DeviceTrust:
    """The judge of a device that has a root.

    Args:
        root: Root metadata from enrolment.
        cache: Where accepted metadata is kept.
        tenant, device: Name of the device.
        arch: Its machine name.
        wall: Clock, seconds since the epoch.

    Raises:
        TrustError: The root is none.
    """

    def __init__(
        self,
        root: bytes,
        cache: Cache,
        *,
        tenant: str,
        device: str,
        arch: str,
        wall: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._tenant, self._device, self._arch = tenant, device, arch
        self._repository = TrustedRepository(root, cache, wall=wall)
        self._pool = MetadataPool()
        self._waiting: bytes | None = None
        self._undecided: SignedOrders | None = None
        self._known: SignedOrders | None = None
        self._is_whole = False
        self._trouble = ""
        self._wall, self._since, self._is_readable = wall, wall(), True
        try:
            self._refresh()
        except OSError as error:
            self._pool.has_news = True  # The next turn tries again.
            self._is_readable = False
            self._trouble = f"nothing new is installed: metadata cannot be read: {error.strerror}"
            log.warning("%s", self._trouble)

    @property
    def reported(self) -> Trusted:
        """State of trust as reported to the fleet, so that the fleet can send missing metadata."""
        repository = self._repository
        return Trusted(
            root=repository.root_version,
            timestamp=repository.timestamp_version,
            is_whole=self._is_whole,
            director=self.heard_sequence,
        )

    @property
    def trouble(self) -> str:
        """Reason for rejecting all new releases, as a sentence; "" without a reason.

        A device that was just enrolled has no metadata yet. This is a failure only after the device
        has waited without success.
        """
        return "" if self._is_new() else self._trouble

    def _is_new(self) -> bool:
        waited_s = self._wall() - self._since
        is_early = self._is_readable and 0 <= waited_s < FIRST_METADATA_S
        return is_early and self._repository.timestamp_version == 0

    @property
    def heard_sequence(self) -> int:
        """Sequence of the last accepted orders of the director."""
        return self._known.desired.sequence if self._known else 0

    @property
    def is_waiting(self) -> bool:
        """True if received orders wait for metadata."""
        return self._waiting is not None or self._undecided is not None

    @property
    def is_lacking(self) -> bool:
        """True if metadata must come before anything new can be installed."""
        return not self._is_whole or self.is_waiting

    def put_metadata(self, name: str, content: bytes) -> bool:
        """Store a received file for verification in the next turn; return False for an unknown
        name.
        """
        return self._cache.load(name) == content or self._pool.put(name, content)

    def put_orders(self, content: bytes) -> None:
        """Store received orders; only the newest arrival waits for verification."""
        if len(content) <= MAX_ORDERS_BYTES:
            self._waiting = content

    def turn(self) -> Decision | None:
        """Verify received metadata and orders.

        Returns:
            New orders of the director and the decisions; None without new orders, or if
            verification must wait.

        Raises:
            TrustError: A received file was rejected; nothing of the file is stored.
            OSError: Accepted metadata cannot be stored; the fleet must send it again.
        """
        if self._pool.has_news or self._has_expired():
            self._refresh()
            self._pool.has_news = False
        if self._waiting is not None and self._is_whole:
            content, self._waiting = self._waiting, None
            try:
                self._undecided = self._accept(content)
            except OSError:
                self._waiting = content
                raise
        if self._undecided is None or not self._is_fresh_for(self._undecided):
            return None
        said, self._undecided = self._undecided, None
        return Decision(desired=said.desired, refusals=self._refusals(said.desired))

    def check_release(self, bundle: BundleRef, fetch: Fetch = fetch_nothing) -> None:
        """Reject a bundle that the image repository does not list for this device, now.

        Args:
            bundle: Bundle to install.
            fetch: Where newer metadata may be had.

        Raises:
            TrustError: The repository does not list the bundle, or its metadata is missing or has
                expired.
            OSError: Accepted metadata cannot be stored.
        """
        self._repository.refresh(fetch)
        if refusal := self._refusal(bundle, fetch):
            raise TrustError(refusal)

    def _refresh(self) -> None:
        """Verify received and stored metadata; `trouble` states the failures.

        A rejected file is dropped without effect, and all others are verified again.
        """
        problem = self._problem(self._pool)
        while problem and self._pool.forget_last():
            problem = self._problem(self._pool)
        self._is_whole = not problem
        trouble = f"nothing new is installed: {problem}" if problem else ""
        if trouble and trouble != self._trouble:
            log.log(logging.INFO if self._is_new() else logging.WARNING, "%s", trouble)
        self._trouble = trouble
        if self._is_whole:
            self._known = self._read_known()
            self._pool.forget_accepted(self._cache.load)

    def _problem(self, fetch: Fetch) -> str:
        try:
            self._repository.refresh(fetch)
            self._repository.load_delegated(fetch)
        except TrustError as error:
            return error.problem
        return ""

    def _read_known(self) -> SignedOrders | None:
        """Return the last accepted orders, if their signer is still trusted."""
        content = self._cache.load(ORDERS_FILE)
        if content is None:
            return None
        try:
            return self._verify(content)
        except TrustError:
            return None  # Its key was revoked: what it said binds nobody, its number neither.

    def _verify(self, content: bytes) -> SignedOrders:
        targets = self._repository.targets
        return verify_orders(content, targets, tenant=self._tenant, device=self._device)

    def _accept(self, content: bytes) -> SignedOrders | None:
        """Verify a director's orders; store only accepted orders and their number.

        Raises:
            TrustError: The orders are not for this device, not signed, older than accepted orders,
                or expired.
            OSError: The orders cannot be stored.
        """
        said = self._verify(content)
        known, number = self.heard_sequence, said.desired.sequence
        if number < known:
            raise TrustError(f"order {number} is older than accepted order {known}")
        if number > known + MAX_STEP:
            raise TrustError(f"order {number} leaves no numbers for later orders")
        late_s = self._repository.now() - said.expires_at
        if late_s > 0:
            raise TrustError(f"order {number} expired {late_s:.0f} s ago")
        self._cache.save(ORDERS_FILE, content)
        self._known = said
        return said

    def _is_fresh_for(self, said: SignedOrders) -> bool:
        """Return True if the known repository is at least as new as the director's."""
        return self._is_whole and self._repository.timestamp_version >= said.timestamp

    def _has_expired(self) -> bool:
        return self._is_whole and self._repository.now() > self._repository.expires_at

    def _refusals(self, desired: Desired) -> dict[str, str]:
        orders = {name: it for name, it in desired.models.items() if isinstance(it, RunModel)}
        found = {name: self._refusal(order.bundle) for name, order in orders.items()}
        return {name: refusal for name, refusal in found.items() if refusal}

    def _refusal(self, bundle: BundleRef, fetch: Fetch = fetch_nothing) -> str:
        """Return why the image repository forbids a bundle; "" if allowed."""
        try:
            target = self._repository.find(target_path(bundle), fetch)
            if target is None:
                return f"{bundle.name} {bundle.version} is not released, or not any more"
            listed = read_listing(target)
        except TrustError as error:
            return error.problem
        if listed.bundle != bundle:
            return f"the release has version {listed.version} and counter {listed.release}"
        if listed.arch and self._arch not in listed.arch:
            return f"wrong hardware: released for {', '.join(listed.arch)}, this is {self._arch}"
        return ""
