"""A device that trusts a root, without a broker: accepted metadata, and releases to install."""

from pathlib import Path

import msgspec
from securesystemslib.signer import Signer

from edgepack.agent.state.metadata_cache import MetadataCache
from edgepack.agent.update.device_trust import DeviceTrust
from edgepack.errors import TrustError
from edgepack.fleet.repository.director import Director
from edgepack.fleet.repository.lifetimes import DAY_S
from edgepack.trust.orders import SignedOrders, join_orders, make_orders
from edgepack.trust.repository import Cache
from edgepack.wire.messages import encode
from edgepack.wire.orders import Desired
from tests.simulators.bundles import ExampleBundle
from tests.simulators.repository import RepositoryWorld

TENANT = "default"


class TrustingDevice:
    """A device of a repository's fleet.

    Args:
        world: The fleet.
        state_dir: Its state folder; created when missing.
        name: Its id.
        arch: Its machine name.
        cache: Folder of metadata; in its state folder when not given.

    Attributes:
        installs: Releases to install, by model, in order.
        refused: Reasons of rejections, by model.
        dropped: Reasons of dropped messages.
        clock_s: How far its clock is from the true time.
    """

    def __init__(
        self,
        world: RepositoryWorld,
        state_dir: Path,
        name: str = "cam-1",
        arch: str = "x86_64",
        cache: Cache | None = None,
    ) -> None:
        self.world, self.state_dir, self.name, self.arch = world, state_dir, name, arch
        state_dir.mkdir(exist_ok=True)
        self.cache = MetadataCache(state_dir) if cache is None else cache
        self.root = world.root
        self.installs: list[tuple[str, int]] = []
        self.refused: dict[str, str] = {}
        self.dropped: list[str] = []
        self.clock_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Start a new agent process on the same disk."""
        self.trust = DeviceTrust(
            self.root,
            self.cache,
            tenant=TENANT,
            device=self.name,
            arch=self.arch,
            wall=lambda: self.world.now + self.clock_s,
        )

    def hear(self, name: str, content: bytes) -> None:
        """Receive a file of metadata, or the director's order."""
        if name == "desired":
            self.trust.put_orders(content)
        else:
            self.trust.put_metadata(name, content)
        self.turn()

    def turn(self) -> None:
        try:
            decision = self.trust.turn()
        except TrustError as error:
            self.dropped.append(error.problem)
            return
        if decision is None:
            return
        self.refused = dict(decision.refusals)
        for name, order in sorted(decision.desired.models.items()):
            if name not in decision.refusals and hasattr(order, "bundle"):
                self.installs.append((name, order.bundle.release))

    def hear_metadata(self) -> None:
        """Receive all metadata together, as sent by the controller."""
        for name, content in self.world.repository.messages().items():
            self.trust.put_metadata(name, content)
        self.turn()

    def hear_all(self, desired: Desired) -> None:
        """Receive the messages of an honest fleet."""
        self.hear_metadata()
        self.hear("desired", word(self.world, self.name, desired))


def word(world: RepositoryWorld, device: str, desired: Desired) -> bytes:
    """Return the director's order to a device."""
    director = Director(world.repository, TENANT, lambda: world.now)
    return director.sign(device, encode(desired))


def wants(*bundles: ExampleBundle, sequence: int) -> Desired:
    """Return an order for these bundles."""
    models = {bundle.ref.name: bundle.order(sequence) for bundle in bundles}
    return Desired(sequence=sequence, models=dict(models))


def resigned(payload: bytes, **changes: object) -> bytes:
    """Return a message with other fields under the same signatures."""
    document = msgspec.json.decode(payload)
    document["signed"] |= changes
    return msgspec.json.encode(document)


def sign_word(
    world: RepositoryWorld,
    desired: Desired,
    signer: Signer,
    *,
    device: str = "cam-1",
    tenant: str = TENANT,
    lives_s: float = DAY_S,
) -> bytes:
    """Return an order signed by a key that may not be the director's."""
    orders = SignedOrders(
        desired=desired,
        issued_at=world.now,
        expires_at=world.now + lives_s,
        timestamp=world.repository.state.timestamp.signed.version,
    )
    metadata = make_orders(
        orders,
        tenant=tenant,
        device=device,
        file_count=lambda bundle: len(bundle.name),
    )
    metadata.sign(signer)
    return join_orders(encode(desired), metadata)
