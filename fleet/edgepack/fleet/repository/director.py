"""Signatures of orders to devices, with the director's key, for each message."""

import logging
import time
from collections.abc import Callable

from edgepack.errors import FleetError
from edgepack.fleet.repository.lifetimes import expiry_of
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.trust.listing import target_path
from edgepack.trust.orders import SignedOrders, join_orders, make_orders
from edgepack.trust.roles import DIRECTOR
from edgepack.wire.messages import decode
from edgepack.wire.orders import BundleRef, Desired

log = logging.getLogger(__name__)

_DIGEST_BYTES = 32


class Director:
    """Signs for the devices of a tenant.

    Args:
        repository: Holds the key and the listed releases.
        tenant: Tenant of the devices.
        wall: Clock, seconds since the epoch.
    """

    def __init__(
        self, repository: ImageRepository, tenant: str, wall: Callable[[], float] = time.time
    ) -> None:
        self._repository, self._tenant, self._wall = repository, tenant, wall

    def sign(self, device: str, payload: bytes) -> bytes:
        """Return the message for a device: the encoded `Desired`, and its signed form.

        Devices that were enrolled before the fleet had a root read the unsigned order, all other
        devices the signed order. An order without any model stays empty.
        """
        if not payload:
            return payload
        state, now = self._repository.state, self._wall()

        def file_count(bundle: BundleRef) -> int:
            target = state.listed(target_path(bundle))
            return target.length // _DIGEST_BYTES if target else 0

        orders = SignedOrders(
            desired=decode(payload, Desired),
            issued_at=now,
            expires_at=expiry_of(DIRECTOR, now).timestamp(),
            timestamp=state.timestamp.signed.version,
        )
        metadata = make_orders(orders, tenant=self._tenant, device=device, file_count=file_count)
        try:
            key_ids = state.targets.signed.get_delegated_role(DIRECTOR).keyids
        except ValueError:
            key_ids = []
        signers = self._repository.keys.signers(key_ids)
        if not signers:
            raise FleetError(
                "the director's key is not here, so devices would obey nothing",
                found_in=str(self._repository.online),
                remedy="edgepack fleet keys rotate director",
            )
        for signer in signers:
            metadata.sign(signer, append=True)
        return join_orders(payload, metadata)
