"""Messages of every version that ever was are understood, and newer ones are told apart."""

import json
from pathlib import Path

import pytest

from edgepack.errors import TransferError
from edgepack.wire import messages
from edgepack.wire.messages import (
    WIRE_VERSION,
    Desired,
    Event,
    Message,
    Reported,
    RunModel,
    Trusted,
    decode,
    encode,
)

MESSAGES = Path(__file__).parent / "messages"
FROZEN = sorted(MESSAGES.glob("*/*.json"))


def kind_of(path: Path) -> type[Message]:
    found: type[Message] = getattr(messages, path.stem.partition("-")[0].capitalize())
    return found


def test_there_are_frozen_messages_of_every_version() -> None:
    versions = [str(version) for version in range(1, WIRE_VERSION.major + 1)]
    assert sorted(path.name for path in MESSAGES.iterdir()) == versions


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
        assert model.acted_sequence == (3 if "minor" in path.stem else 0)
        trusted = Trusted(root=3, timestamp=41, is_whole=True, director=3)
        assert message.trust == (trusted if "minor-2" in path.stem else None)


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_message_of_a_newer_minor_version_is_read_and_of_a_newer_major_one_is_refused(
    path: Path,
) -> None:
    message = json.loads(encode(decode(path.read_bytes(), kind_of(path))))
    grown = message | {"minor": 9, "mood": {"is": "good"}}
    assert decode(json.dumps(grown).encode(), kind_of(path)).minor == 9
    newer = message | {"v": WIRE_VERSION.major + 1}
    with pytest.raises(
        TransferError, match=r"message is of version 3\.\d, this edgepack reads 2\."
    ):
        decode(json.dumps(newer).encode(), kind_of(path))


def test_a_kind_and_a_state_that_are_not_known_are_shown_as_they_came() -> None:
    event = decode(
        b'{"v":2,"minor":4,"at":1,"kind":"dreamt","bundle":"x","to_state":"ASLEEP"}', Event
    )
    assert (event.kind, event.to_state) == ("dreamt", "ASLEEP")
    report = b'{"v":2,"online":true,"at":1,"models":{"ocr":{"state":"DREAMING"}}}'
    assert decode(report, Reported).models["ocr"].state == "DREAMING"


@pytest.mark.parametrize("version", ["-1", "1.5", '"2"', "true", "null", "[]"])
def test_a_version_that_is_none_is_malformed(version: str) -> None:
    with pytest.raises(TransferError, match="malformed Reported message"):
        decode(b'{"v":%s,"online":true,"at":1}' % version.encode(), Reported)
