"""Messages of every released version are read, and newer messages are recognized."""

import json
from pathlib import Path

import pytest

from edgepack.bundle.keys import load_public_key
from edgepack.errors import TransferError
from edgepack.wire import batches, orders, reports, telemetry, transfers
from edgepack.wire.batches import Batch
from edgepack.wire.messages import WIRE_VERSION, Message, decode, encode
from edgepack.wire.orders import Desired, RunModel
from edgepack.wire.reports import Reported
from edgepack.wire.signed import is_signed_by, read_batch
from edgepack.wire.telemetry import Event

MESSAGES = Path(__file__).parent / "messages"
FROZEN = sorted(path for path in MESSAGES.glob("*/*.json") if path.stem != "batch")
MODULES = (batches, orders, reports, telemetry, transfers)
KINDS = {kind.__name__: kind for kind in Message.__subclasses__()}
SIGNED = sorted(MESSAGES.glob("*/batch.json"))


def kind_of(path: Path) -> type[Message]:
    return KINDS[path.stem.partition("-")[0].title().replace("_", "")]


def test_the_present_version_has_a_frozen_message_of_each_kind() -> None:
    kinds = {kind_of(path) for path in FROZEN if path.parent.name == str(WIRE_VERSION)}
    assert kinds | {Batch} == set(KINDS.values())
    assert {kind.__module__ for kind in KINDS.values()} == {module.__name__ for module in MODULES}
    assert str(WIRE_VERSION) in {path.parent.name for path in SIGNED}


@pytest.mark.parametrize("path", SIGNED, ids=lambda path: path.parent.name)
def test_a_frozen_batch_is_read_and_its_signature_holds(path: Path) -> None:
    signed = read_batch(path.read_bytes())
    assert is_signed_by(signed, load_public_key(path.with_suffix(".pub")))


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_frozen_message_is_understood(path: Path) -> None:
    message = decode(path.read_bytes(), kind_of(path))
    assert message.v == WIRE_VERSION.major
    assert decode(encode(message), kind_of(path)) == message
    if isinstance(message, Desired):
        (order,) = message.models.values()
        assert isinstance(order, RunModel)
        assert (order.bundle.name, order.bundle.release, order.soak_s) == ("ocr", 7, 2.0)
        assert message.sequence == order.sequence == 3
    if isinstance(message, Reported) and message.online:
        model = message.models["ocr"]
        assert (model.state, model.sequence) == ("COMMITTED", 3)
        assert model.active is not None
        assert model.active.bundle.release == 7
        assert model.previous is not None
        assert model.previous.release == 6
        assert model.acted_sequence == 3


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_message_of_a_newer_minor_version_is_read_and_of_a_newer_major_one_is_refused(
    path: Path,
) -> None:
    message = json.loads(encode(decode(path.read_bytes(), kind_of(path))))
    grown = message | {"minor": 9, "mood": {"is": "good"}}
    assert decode(json.dumps(grown).encode(), kind_of(path)).minor == 9
    newer = message | {"v": WIRE_VERSION.major + 1}
    with pytest.raises(TransferError, match=r"of version 2\.\d, this edgepack reads 1\."):
        decode(json.dumps(newer).encode(), kind_of(path))


def test_a_kind_and_a_state_that_are_not_known_are_shown_as_they_came() -> None:
    event = decode(
        b'{"v":1,"minor":4,"at":1,"kind":"dreamt","bundle":"x","to_state":"ASLEEP"}', Event
    )
    assert (event.kind, event.to_state) == ("dreamt", "ASLEEP")
    report = b'{"v":1,"online":true,"at":1,"models":{"ocr":{"state":"DREAMING"}}}'
    assert decode(report, Reported).models["ocr"].state == "DREAMING"


@pytest.mark.parametrize("version", ["-1", "0", "1.5", '"1"', "true", "null", "[]"])
def test_a_version_that_is_none_is_malformed(version: str) -> None:
    with pytest.raises(TransferError, match="malformed Reported message"):
        decode(b'{"v":%s,"online":true,"at":1}' % version.encode(), Reported)
