"""Log lines for the fleet: without secrets, bounded, and only with the device's consent."""

import logging
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from edgepack.agent.broker.logs import (
    MAX_BYTES,
    MAX_LINE,
    PAUSE_S,
    RESEND_S,
    LogSender,
    RecentLog,
    redact,
)
from edgepack.agent.config import AgentConfig, LogsConfig, TrustConfig
from edgepack.wire.orders import MAX_LOG_LINES, LogOrder
from edgepack.wire.transfers import LogLines

CONFIG = AgentConfig(device="cam-1", state_dir="/s", trust=TrustConfig(keys=("a",)))
ORDER = LogOrder(request="l1t0", lines=3, expires_at=1000.0)
KEY_LINE = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgevZzL1gdAFr88hb2"


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("connecting to mqtts://ann:hunter2@broker:8883", "hunter2"),
        ("connecting to mqtts://ann:hunt/er2@x@broker:8883", "er2@x"),
        ("GET https://store/x?X-Amz-Signature=5f3a&n=1 failed", "5f3a"),
        ("Authorization: Bearer 12345678.abc", "12345678"),
        ("sent authorization: basic YW5uOmh1bnRlcjI=", "YW5u"),
        ('{"password": "hunter2", "user": "ann"}', "hunter2"),
        ("broker.password='hunter 2'", "hunter"),
        ("detail=password=hunter2", "hunter2"),
        ("DB_PASSWD=hunter2", "hunter2"),
        ("api-key: abc123def", "abc123def"),
        ("the pin = 1234", "1234"),
        ("user_pin:1234", "1234"),
        ("pkcs11:object=key;type=private?pin-value=1234&x=1", "1234"),
        ("token=abcdef", "abcdef"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.c2ln", "c2ln"),
        ("-----BEGIN PRIVATE KEY-----", "PRIVATE"),
        (KEY_LINE, KEY_LINE[:8]),
        ("started mender --password hunter2 --verbose", "hunter2"),
        ("pass=hunter2", "hunter2"),
        ("wifi psk=hunter2", "hunter2"),
        ("userPin=123456", "123456"),
        ("proxy //ann:hunter2@proxy:3128", "hunter2"),
        ("Cookie: a=1; session=abcdef", "abcdef"),
        ("key Zm9vYmFyL2Zv/b2Jhci9mb29iYXI+Zm9vYmFyL2Zvb2Jhcg9", "b2Jhci9mb29iYXI"),
        ("session secret xK3jPq9ZtRw2LmN8vBc4DfGh6JkS1aQeWyUiOpX7", "xK3jPq9"),
    ],
)
def test_secrets_leave_the_line(line: str, secret: str) -> None:
    assert secret in line
    assert secret not in redact(line)
    assert "***" in redact(line)


@pytest.mark.parametrize(
    "line",
    [
        "bundle=tiny-1.2.0 from=PROBING to=ROLLED_BACK because=cosine 0.91 < 0.98",
        f"slot={'5ae7' * 16} reused_bytes=123",
        '  File "/usr/lib/edgepack/python/edgepack/agent/daemon/agent.py", line 120, in turn',
        "connection lost to mqtts://broker.example:8883 because=[Errno 111] Connection refused",
        "hook=/opt/Vendor/Tools9/bin/installFirmwareOfTheBoard/run ended with 1",
        "dropped=unknown topic count=1 detail='ep/1/default/d/cam-1/dn/x'",
    ],
)
def test_lines_without_secrets_stay(line: str) -> None:
    assert redact(line) == line


def test_hostile_line_is_redacted_in_linear_time() -> None:
    more = ("A1g/", "--pin ", "//:", "cookie:")
    for piece in ("a", "a.", "a=", "//", "://", "e", "A-", "pin", "'", "eyJ", "a:'", *more):
        redact(piece * (MAX_LINE // len(piece)))  # A quadratic search would take minutes.


def test_last_lines_are_bounded_and_printable() -> None:
    recent = RecentLog()
    logger = logging.Logger("x")
    logger.addHandler(recent)
    for number in range(MAX_LOG_LINES + 100):
        logger.info("line %d \x1b[31m", number)
    logger.info("%s", "word " * 1000)
    logger.info("https://ann:%s@host", "hunter2" * 1000)
    try:
        int("no such thing")
    except ValueError:
        logger.exception("it failed: password=hunter2")
    logger.info("%d", "wrong")  # A malformed record ends nothing.
    lines = recent.last(10_000)
    assert len(lines) == MAX_LOG_LINES
    assert all(len(line) <= MAX_LINE and line.isprintable() for line in lines)
    assert not any("hunter2" in line for line in lines)
    assert any(line.startswith("ValueError: invalid literal") for line in lines)
    assert recent.last(1) == lines[-1:]
    assert lines[0].endswith("\\x1b[31m")


class Device:
    """A sender whose clock a test moves."""

    def __init__(self, config: AgentConfig = CONFIG, lines: tuple[str, ...] = ("a", "b")) -> None:
        self.now = 500.0
        self.sender = LogSender(
            config, lambda count: lines[-count:], wall=lambda: self.now, monotonic=lambda: self.now
        )


def test_answer_is_repeated_less_and_less_often_until_the_request_ends() -> None:
    device = Device()
    assert device.sender.turn() is None
    device.sender.take(ORDER, is_signed=True)
    sent = []
    while device.now < 900.0:
        if (answer := device.sender.turn()) is not None:
            sent.append(device.now)
            assert answer == LogLines(request="l1t0", lines=("a", "b"))
        device.sender.take(ORDER, is_signed=True)  # The fleet repeats its orders.
        device.now += 1.0
    gaps = [after - before for before, after in pairwise(sent)]
    assert gaps == [RESEND_S, 2 * RESEND_S, 4 * RESEND_S]
    device.sender.take(None, is_signed=True)
    device.now += 1e6
    assert device.sender.turn() is None


def test_expired_request_is_not_answered_and_a_flood_of_requests_is_slowed_down() -> None:
    device = Device()
    device.sender.take(replace(ORDER, expires_at=499.0), is_signed=True)
    assert device.sender.turn() is None
    answers = 0
    for number in range(100):
        device.sender.take(replace(ORDER, request=f"l{number}t1"), is_signed=True)
        answers += device.sender.turn() is not None
        device.now += 1.0
    assert answers == 100 / PAUSE_S


@pytest.mark.parametrize(
    ("config", "is_signed", "because"),
    [
        (replace(CONFIG, logs=LogsConfig(send=False)), True, "[logs] send"),
        (CONFIG, False, "the device has no root of trust"),
    ],
)
def test_device_may_refuse(config: AgentConfig, is_signed: bool, because: str) -> None:
    device = Device(config)
    device.sender.take(ORDER, is_signed=is_signed)
    answer = device.sender.turn()
    assert answer is not None
    assert because in answer.because
    assert answer.lines == ()
    device.sender.apply(CONFIG)


def test_long_answer_loses_its_oldest_lines() -> None:
    lines = tuple(f"{number} {'ü' * 490}" for number in range(MAX_LOG_LINES))
    device = Device(lines=lines)
    device.sender.take(replace(ORDER, lines=MAX_LOG_LINES), is_signed=True)
    answer = device.sender.turn()
    assert answer is not None
    assert MAX_BYTES - 1100 < len(msgspec.json.encode(answer)) <= MAX_BYTES + 100
    assert answer.lines[-1] == lines[-1]


def test_settings_name_the_consent(tmp_path: Path) -> None:
    from edgepack.agent.config import read_config

    path = tmp_path / "agent.toml"
    path.write_text(
        'device = "cam-1"\nstate_dir = "s"\n[trust]\nkeys = ["a"]\n[logs]\nsend = false\n'
    )
    assert read_config(path).logs.send is False
