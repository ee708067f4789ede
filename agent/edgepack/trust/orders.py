"""Orders to a device, signed by the director: TUF targets metadata for a single device.

The role `director` is delegated by the targets key. Each order stands at `director/MODEL/DIGEST`,
with the digest and length that the image repository lists; the order itself is `custom`, as text,
since TUF's canonical JSON has no fractions. Removals and requests for samples and log lines have no
file, so they stand next to the targets.
"""

import datetime
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from tuf.api import exceptions
from tuf.api.metadata import Metadata, Targets
from tuf.api.serialization.json import JSONSerializer

from edgepack.decoding import decode_json
from edgepack.errors import TrustError, parse_problem
from edgepack.trust.listing import make_target, read_target_path, target_path
from edgepack.trust.repository import ISSUED_AT
from edgepack.trust.roles import DIRECTOR
from edgepack.wire.orders import (
    BundleRef,
    CaptureOrder,
    Desired,
    LogOrder,
    ModelOrder,
    RemoveModel,
    RunModel,
)

DIRECTOR_PATHS = (f"{DIRECTOR}/*/*",)
"""What the director may sign; the repository's own targets lie elsewhere."""
_ORDER, _REMOVALS, _CAPTURES, _LOG, _TENANT, _DEVICE, _TIMESTAMP = (
    *("order", "removals", "captures", "log_order", "tenant", "device", "timestamp"),
)
_COMPACT = JSONSerializer(compact=True)


class SignedOrders(msgspec.Struct, frozen=True, kw_only=True):
    """A director's orders to a device, after verification of the signature.

    Attributes:
        desired: Desired state of the device.
        issued_at, expires_at: Time of the signature, and end of validity.
        timestamp: Version of the image repository's timestamp that the director knew.
    """

    desired: Desired
    issued_at: float
    expires_at: float
    timestamp: int


def make_orders(
    orders: SignedOrders, *, tenant: str, device: str, file_count: Callable[[BundleRef], int]
) -> Metadata[Targets]:
    """Return the metadata, to be signed.

    Args:
        orders: Orders to sign.
        tenant, device: Recipient.
        file_count: How many signed files a bundle has.
    """
    desired = orders.desired
    targets, removals = {}, {}
    for name, order in desired.models.items():
        text = msgspec.json.encode(order).decode()
        if isinstance(order, RunModel):
            target = make_target(order.bundle, file_count(order.bundle), {_ORDER: text})
            target.path = f"{DIRECTOR}/{target.path}"
            targets[target.path] = target
        else:
            removals[name] = text
    return Metadata(
        Targets(
            version=max(1, desired.sequence),
            expires=datetime.datetime.fromtimestamp(int(orders.expires_at), datetime.UTC),
            targets=targets,
            unrecognized_fields={
                _TENANT: tenant,
                _DEVICE: device,
                ISSUED_AT: int(orders.issued_at),
                _TIMESTAMP: orders.timestamp,
                _REMOVALS: removals,
                _CAPTURES: {
                    name: msgspec.json.encode(order).decode()
                    for name, order in desired.captures.items()
                },
                **({_LOG: msgspec.json.encode(desired.log).decode()} if desired.log else {}),
            },
        )
    )


def join_orders(unsigned: bytes, signed: Metadata[Targets]) -> bytes:
    """Return a single message for both kinds of devices: with a root, and without a root.

    Args:
        unsigned: The encoded `Desired`; its readers ignore the keys of the signed orders.
        signed: The signed orders; their readers ignore the keys of `unsigned`.
    """
    return unsigned.rstrip()[:-1] + b"," + signed.to_bytes(_COMPACT)[1:]


def verify_orders(content: bytes, delegator: Targets, *, tenant: str, device: str) -> SignedOrders:
    """Verify and read the director's orders to a device.

    1. The content is targets metadata, signed by the director's present keys in the targets role.
    2. The metadata is for this device of this tenant.
    3. Every order stands at its own path, with its own digest, and no model has two.

    The caller checks for newness and expiry.

    Raises:
        TrustError: A check fails.
    """
    # 1.
    try:
        found = Metadata[Targets].from_bytes(content)
        if found.signed.type != Targets.type:
            raise TrustError("the director's orders are not targets metadata")
        delegator.verify_delegate(DIRECTOR, found.signed_bytes, found.signatures)
    except (exceptions.RepositoryError, ValueError) as error:
        raise TrustError("this device's orders are not signed by the director") from error
    said = found.signed
    # 2.
    fields = said.unrecognized_fields
    for field, own in ((_TENANT, tenant), (_DEVICE, device)):
        if fields.get(field) != own:
            raise TrustError(f"the director's orders are for {field} {fields.get(field)!a:.80}")
    # 3.
    issued_at, timestamp = fields.get(ISSUED_AT), fields.get(_TIMESTAMP)
    if not isinstance(issued_at, int) or not isinstance(timestamp, int):
        raise TrustError("the director's orders have no time of signature")
    models: dict[str, ModelOrder] = {}
    for path, target in said.targets.items():
        order = _read(target.custom.get(_ORDER) if target.custom else None, RunModel)
        own_path = f"{DIRECTOR}/{target_path(order.bundle)}"
        named = read_target_path(path.removeprefix(f"{DIRECTOR}/"))
        if path != own_path or named is None or target.hashes != {"sha256": order.bundle.digest}:
            raise TrustError(f"the director contradicts itself about {path[:120]!a}")
        _add(models, order.bundle.name, order, said.version)
    for name, text in _texts(fields.get(_REMOVALS)):
        _add(models, name, _read(text, RemoveModel), said.version)
    captures = {name: _read(text, CaptureOrder) for name, text in _texts(fields.get(_CAPTURES))}
    log = _read(fields[_LOG], LogOrder) if _LOG in fields else None
    is_empty = not models and not captures and log is None and said.version == 1
    sequence = 0 if is_empty else said.version
    return SignedOrders(
        desired=Desired(sequence=sequence, models=models, captures=captures, log=log),
        issued_at=issued_at,
        expires_at=said.expires.timestamp(),
        timestamp=timestamp,
    )


def _texts(found: Any) -> Iterable[tuple[str, Any]]:
    return found.items() if isinstance(found, dict) else ()


def _read(text: Any, kind: Any) -> Any:
    try:
        return decode_json(text if isinstance(text, str) else b"", kind)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise TrustError(
            f"an order of the director cannot be read: {parse_problem(error)}"
        ) from error


def _add(models: dict[str, ModelOrder], name: str, order: ModelOrder, version: int) -> None:
    if name in models:
        raise TrustError(f"the director has two orders for {name[:100]!a}")
    if order.sequence > version:
        raise TrustError(f"an order of the director has sequence {order.sequence} of {version}")
    models[name] = order
