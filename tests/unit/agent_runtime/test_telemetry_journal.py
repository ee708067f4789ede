"""Durable telemetry: inferences that the fleet counts are inferences that were made.

Schedules of kills, power cuts, full disks, offline weeks and clock jumps run with the real spool,
journal and numbers, in one process: a kill drops the objects, and the files stay.
"""

import errno
import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from edgepack.agent.config import TelemetryConfig
from edgepack.agent.telemetry import spool
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.journal import JOURNAL_FILE, Numbered
from edgepack.agent.telemetry.record import Record
from edgepack.agent.telemetry.spool import spool_folder
from edgepack.durable import write_file
from edgepack.fleet.database.telemetry_sequences import WIDTH, TelemetrySequence
from edgepack.wire.batches import Batch
from edgepack.wire.messages import encode
from edgepack.wire.telemetry import Telemetry
from tests.simulators.manifests import CPU

RELEASES = ("1" * 64, "2" * 64)
SCHEDULES = int(os.environ.get("EDGEPACK_SCHEDULES", "60"))
SMALL = TelemetryConfig(journal_bytes=4096)


class Disk:
    """Writes files durably, unless the disk is full; counts bytes and flushes."""

    def __init__(self) -> None:
        self.is_full = False
        self.bytes = self.flushes = 0

    def write(self, path: Path, content: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        self.bytes += len(content)
        self.flushes += 2  # The file and its folder, as in `write_file`.
        write_file(path, content, lasting=False)


class Fleet:
    """The fleet's numbers: counts each window once."""

    def __init__(self) -> None:
        self.known = TelemetrySequence()
        self.windows: list[Telemetry] = []

    @property
    def count(self) -> int:
        return sum(one.latency.count + one.failures for one in self.windows)

    def hear(self, sent: Numbered) -> int:
        batch = Batch(
            tenant="t",
            device="d",
            kind="telemetry",
            boot="b",
            sequence=sent.first,
            journal=sent.journal,
            messages=(),
        )
        self.known = self.known.of(batch, "session")
        for number, window in enumerate(sent.windows, sent.first):
            if self.known.is_new(number):
                self.known = self.known.with_number(number)
                self.windows.append(window)
        return sent.first + len(sent.windows) - 1


class Device:
    """An agent and two applications, each of which may be killed at any step."""

    def __init__(self, folder: Path, rng: random.Random, settings: TelemetryConfig) -> None:
        self.folder, self.rng, self.settings = folder, rng, settings
        self.fleet, self.disk = Fleet(), Disk()
        self.made = self.at_risk = 0
        self.is_online = True
        self.agent = self.boot()
        self.applications = [self.open(), self.open()]

    def boot(self) -> TelemetryBuffer:
        return TelemetryBuffer(self.folder, settings=self.settings, write=self.disk.write)

    def open(self) -> Record:
        digest = self.rng.choice(RELEASES)
        return Record(self.folder, model="m", digest=digest, variant="cpu", provider=CPU)

    def run(self, count: int) -> None:
        for _ in range(count):
            record = self.rng.choice(self.applications)
            if self.rng.random() < 0.1:
                record.fail()
            else:
                record.latency.record(self.rng.lognormvariate(1.0, 0.5))
        self.made += count
        self.at_risk += count

    @property
    def total(self) -> int:
        """Inferences in the device's own metrics, as far as they are gathered."""
        self.agent.gather()
        return sum(one.sums.finished + one.sums.failed for one in self.agent.totals)

    def commit(self) -> None:
        if self.store():
            self.send()

    def store(self) -> bool:
        try:
            self.agent.commit(seals=self.is_online)
        except OSError:
            return False
        self.at_risk = 0
        return True

    def send(self) -> None:
        """Send until the fleet has all, unless a message is lost on the way."""
        while self.is_online and (sent := self.agent.journal.under_way) is not None:
            if self.rng.random() < 0.2:
                return  # The batch is lost.
            until = self.fleet.hear(sent)
            if self.rng.random() < 0.2:
                return  # The acknowledgement is lost.
            self.agent.journal.acknowledge(sent.journal, until, self.fleet.known.sequence)
            if self.agent.journal.is_waiting and not self.store():
                return

    def kill_application(self) -> None:
        self.applications.pop(self.rng.randrange(2)).latency.close()  # Its lock goes with it.
        self.applications.append(self.open())

    def close_application(self) -> None:
        self.applications.pop(self.rng.randrange(2)).write((), is_final=True)
        self.applications.append(self.open())

    def kill_agent(self) -> None:
        self.agent = self.boot()

    def cut_power(self) -> int:
        """Lose the memory: return the inferences since the last commit."""
        for record in self.applications:
            record.latency.close()
        shutil.rmtree(spool_folder(self.folder).resolve())
        self.agent = self.boot()
        self.applications = [self.open(), self.open()]
        lost, self.at_risk = self.at_risk, 0
        return lost


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1.8e9]
    monkeypatch.setattr("edgepack.agent.telemetry.record.time.time", lambda: now[0])
    return now


def test_what_the_fleet_counts_was_made(tmp_path: Path, clock: list[float]) -> None:
    for seed in range(SCHEDULES):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        device, lost = Device(folder, rng, SMALL), 0
        for _ in range(rng.randrange(20, 60)):
            clock[0] += 300.0
            device.run(rng.randrange(20))
            step = rng.choice(
                ("commit",) * 4
                + ("gather", "kill agent", "kill application", "close", "write", "clock")
                + ("online", "disk", "power", "resend")
            )
            match step:
                case "commit":
                    device.commit()
                case "gather":
                    device.agent.gather()
                case "kill agent":
                    before = device.total
                    device.kill_agent()
                    assert device.total == before
                case "kill application":
                    device.kill_application()
                case "close":
                    device.close_application()
                case "write":
                    device.applications[0].write(())
                case "clock":
                    clock[0] = max(0.0, clock[0] + rng.choice((-1, 1)) * rng.uniform(60, 4e7))
                case "online":
                    device.is_online = not device.is_online
                case "disk":
                    device.disk.is_full = not device.disk.is_full
                case "power":
                    lost += device.cut_power()
                case "resend":
                    device.send()
        device.is_online, device.disk.is_full = True, False
        for _ in range(200):
            device.commit()
            if device.agent.journal.under_way is None and not device.agent.journal.is_waiting:
                break
        assert device.fleet.count == device.made - lost, f"schedule {seed}"
        assert device.total == device.fleet.count, "the device's own metrics"
        assert all(it.not_finite <= it.latency.count for it in device.fleet.windows)
        left = list(spool_folder(folder).glob("*.json"))
        assert len(left) == len(device.applications)


def test_a_week_offline_merges_windows_within_the_bound(tmp_path: Path, clock: list[float]) -> None:
    device = Device(tmp_path, random.Random(1), TelemetryConfig())
    device.is_online = False
    for _ in range(7 * 24 * 2):
        clock[0] += 1800.0
        device.run(3)
        device.commit()
    stored = device.agent.journal.stored
    size = sum(len(encode(window)) for window in stored.windows)
    assert size <= device.settings.journal_bytes
    lengths_h = sorted(window.window_s / 3600 for window in stored.windows)
    assert lengths_h[-1] < 24, "the time of an inference is known to a part of a day"
    device.is_online, device.rng = True, random.Random(2)
    while device.agent.journal.under_way or device.agent.journal.stored.windows:
        device.commit()
    assert device.fleet.count == device.made == 3 * 7 * 24 * 2


def test_an_hour_of_ten_inferences_a_second_writes_little(
    tmp_path: Path, clock: list[float]
) -> None:
    device = Device(tmp_path, random.Random(1), TelemetryConfig())
    hour = int(3600 / device.settings.interval_s)
    before = device.disk.bytes, device.disk.flushes
    for _ in range(hour):
        clock[0] += device.settings.interval_s
        device.run(int(10 * device.settings.interval_s))
        device.applications[0].write(())
        device.agent.gather()
        device.commit()
    assert device.disk.flushes - before[1] <= 60
    assert device.disk.bytes - before[0] <= 200_000
    assert sum(one.latency.count + one.failures for one in device.fleet.windows) <= device.made


def test_windows_that_were_sent_do_not_change(tmp_path: Path) -> None:
    device = Device(tmp_path, random.Random(1), SMALL)
    device.run(10)
    device.agent.commit(seals=True)
    sent = device.agent.journal.under_way
    for _ in range(30):
        device.run(10)
        device.agent.commit(seals=True)
    assert device.agent.journal.under_way == sent
    device.kill_agent()
    assert device.agent.journal.under_way == sent
    assert sent is not None
    assert msgspec.json.encode(sent.windows[0])


def test_a_device_restored_from_an_old_backup_is_counted_again(
    tmp_path: Path, clock: list[float]
) -> None:
    device = Device(tmp_path, random.Random(1), SMALL)

    def commit_all() -> None:
        device.commit()
        while device.agent.journal.under_way or device.agent.journal.is_waiting:
            device.commit()

    device.run(10)
    commit_all()
    # The backup has a window that the fleet received later.
    device.is_online = False
    device.run(10)
    device.commit()
    backup = (tmp_path / JOURNAL_FILE).read_bytes()
    device.is_online = True
    for _ in range(2 * WIDTH):
        clock[0] += 300.0
        device.run(10)
        commit_all()
    before = device.fleet.count
    assert before == device.made
    device.cut_power()
    (tmp_path / JOURNAL_FILE).write_bytes(backup)
    device.kill_agent()
    device.run(7)
    commit_all()
    assert device.fleet.count <= before + 7, "nothing counts twice"
    unknown = device.made - device.fleet.count
    for _ in range(3):
        clock[0] += 300.0
        device.run(11)
        commit_all()
    assert device.made - device.fleet.count == unknown, "all later inferences count"


def test_a_process_that_cannot_reach_the_runtime_directory_writes_to_the_state_folder(
    tmp_path: Path,
) -> None:
    assert spool.open_spool(tmp_path) == ""
    shutil.rmtree(spool_folder(tmp_path).resolve())
    record = Record(tmp_path, model="m", digest=RELEASES[0], variant="cpu", provider=CPU)
    record.latency.record(1.0)
    record.write(())
    (path,) = (tmp_path / spool.DISK_FOLDER).glob("*.json")
    buffer = TelemetryBuffer(tmp_path)
    assert [one.latency.count for one in buffer.collect().telemetry] == [1]
    record.latency.record(1.0)
    record.write(())
    assert [one.latency.count for one in buffer.collect().telemetry] == [1]
    assert path.exists()


@pytest.mark.parametrize("squatted", [False, True])
def test_the_spool_takes_the_first_runtime_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squatted: bool
) -> None:
    state_dir, first, second = (tmp_path / name for name in ("state", "first", "second"))
    for folder in (state_dir, first, second):
        folder.mkdir()
    monkeypatch.setenv(spool.RUNTIME_VARIABLES[1], str(tmp_path / "nowhere"))
    monkeypatch.setattr(spool, "RUNTIME_FOLDERS", (first, second))
    name = spool._runtime_folders(state_dir, "")[0].name
    if squatted:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        assert spool.open_spool(state_dir) != ""
        return
    assert spool.open_spool(state_dir) == ""
    assert spool_folder(state_dir).readlink() == first / name
    (first / name).rmdir()
    first.rmdir()
    assert spool.open_spool(state_dir) == ""
    assert spool_folder(state_dir).readlink() == second / name
    assert spool.open_spool(state_dir, str(tmp_path / "a" / "b")) != ""


def test_windows_have_the_time_of_counts_that_no_file_has_yet(
    tmp_path: Path, clock: list[float]
) -> None:
    buffer = TelemetryBuffer(tmp_path)
    record = Record(tmp_path, model="m", digest=RELEASES[0], variant="cpu", provider=CPU)
    for at in (480.0, 485.0):
        clock[0] = 1.8e9 + at
        record.latency.record(1.0)
        buffer.gather()
    windows = buffer.collect().telemetry
    spans = [(one.window_start - 1.8e9, one.window_s) for one in windows]
    assert spans == [(0.0, 480.0), (480.0, 5.0)], "the watch gets the windows apart"
    assert buffer.collect().telemetry == ()
