"""Queries on stored reports of devices that do not parse the complete report.

Many devices report the same releases and facts: equal parts are decoded once.
"""

from functools import lru_cache
from typing import NamedTuple

import msgspec

from edgepack.decoding import decode_json
from edgepack.wire.messages import WIRE_VERSION, decode, encode
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import DeviceFacts, Reported

REMEMBERED = 4096
"""Texts of which it is known what they say."""
_NONE = msgspec.Raw(b"null")


class Serving(NamedTuple):
    """State of a model on a device, from its last report.

    Attributes:
        runs: The serving release; None while nothing serves.
        kept: The older release to go back to.
    """

    runs: BundleRef | None = None
    kept: BundleRef | None = None


class _Active(msgspec.Struct):
    bundle: msgspec.Raw


class _Model(msgspec.Struct):
    active: _Active | None = None
    previous: msgspec.Raw = _NONE


class _Said(msgspec.Struct):
    v: int
    models: dict[str, _Model] = {}
    facts: msgspec.Raw = _NONE


class _Provider(msgspec.Struct):
    name: str
    is_simulator: bool = False


class _Facts(msgspec.Struct):
    providers: tuple[_Provider, ...] = ()


class _SaidOfProviders(msgspec.Struct):
    facts: _Facts | None = None


def serving_of(reported: str | None, model: str) -> Serving:
    """Return the state of a model in a device's report."""
    said = _read(reported).models.get(model) if reported else None
    if said is None:
        return Serving()
    runs = _bundle(bytes(said.active.bundle)) if said.active else None
    return Serving(runs, _bundle(bytes(said.previous)))


def facts_of(reported: str | None) -> DeviceFacts | None:
    """Return the facts in a device's report; None without any."""
    return _read_facts(bytes(_read(reported).facts)) if reported else None


def simulated_providers(reported: str | None) -> frozenset[str]:
    """Return the providers that only simulate their hardware on a device."""
    facts = decode_json(reported, _SaidOfProviders).facts if reported else None
    return frozenset(p.name for p in facts.providers if p.is_simulator) if facts else frozenset()


def _read(reported: str) -> _Said:
    said = decode_json(reported, _Said)
    if said.v != WIRE_VERSION.major:  # an edgepack of long ago took it down
        today = encode(decode(reported.encode(), Reported))
        said = decode_json(today, _Said)
    return said


@lru_cache(REMEMBERED)
def _bundle(text: bytes) -> BundleRef | None:
    return decode_json(text, BundleRef | None)


@lru_cache(REMEMBERED)
def _read_facts(text: bytes) -> DeviceFacts | None:
    return decode_json(text, DeviceFacts | None)
