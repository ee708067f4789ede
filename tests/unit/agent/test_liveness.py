"""Processes register the models they hold: deaths, hangs and silence are evidence in a soak."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from edgepack.agent.config import WatchConfig
from edgepack.agent.state.holders import (
    HELD,
    KEPT_S,
    MAX_TEXT,
    Death,
    Held,
    Holders,
    HolderWatch,
    Registration,
    holders_folders,
    open_holders,
)
from edgepack.agent.state.state_file import open_shared
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.telemetry.pace import Interval, Pace
from edgepack.agent.telemetry.spool import open_spool
from edgepack.agent.watch.evidence import judge_healed
from edgepack.agent.watch.liveness import (
    DEATHS,
    OPENING_S,
    find_deaths,
    find_hangs,
    find_silence,
)
from edgepack.agent.watch.observed import Observed
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.telemetry import Telemetry
from tests.simulators.waiting import wait_until
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases

NOW = 10_000.0
HUNG_S = WatchConfig().hung_s


@pytest.fixture(autouse=True)
def idle_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device be idle, whatever runs beside the tests."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


HOLD = """
import os, sys, time
from pathlib import Path
from edgepack.agent.state.holders import Registration
held = Registration(Path(sys.argv[1]), "tiny")
held.update(digest="d")
(running := held.marks.running()).__enter__()
if sys.argv[2] == "fork" and not os.fork():
    time.sleep(60)
print(os.getpid(), flush=True)
sys.stdin.readline()
held.close()
"""


def held(**changes: object) -> Held:
    one = Held(boot="b", pid=7, model="tiny", digest="d", beat_at=NOW)
    return msgspec.structs.replace(one, **changes)


def died(*ages_s: float, **changes: object) -> Holders:
    return Holders(deaths=tuple(Death(NOW - age_s, held(**changes)) for age_s in ages_s))


@contextmanager
def holder(state_dir: Path, how: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process that holds a model until its stdin closes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state_dir), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("how", ["", "fork"])
def test_killed_process_is_a_death_and_a_closed_model_is_none(tmp_path: Path, how: str) -> None:
    assert open_holders(tmp_path) == ""
    watch = HolderWatch(tmp_path)
    with holder(tmp_path) as closes, holder(tmp_path, how) as dies:
        assert {one.pid for one in watch.look().held} == {closes.pid, dies.pid}
        closes.communicate(b"\n")
        dies.kill()  # Its forked child lives, and holds nothing.
        dies.wait()
        wait_until(lambda: not watch.look().held)  # The child lets go when it first runs.
        seen = watch.look()
        assert [death.held.pid for death in seen.deaths] == [dies.pid]
        assert seen.deaths[0].held.releases == {"d"}
        assert watch.look() == seen, "a death counts once"
        assert [*tmp_path.rglob("*.json")] == []


def test_model_closed_during_a_look_is_no_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_holders(tmp_path)
    registration, watch = Registration(tmp_path, "tiny"), HolderWatch(tmp_path)
    assert watch.look().held

    def open_and_close(path: Path) -> int | None:
        file = open_shared(path)
        registration.close()
        return file

    monkeypatch.setattr("edgepack.agent.state.holders.open_shared", open_and_close)
    assert watch.look().deaths == ()


HOLD_SEVERAL = """
import os, sys
from pathlib import Path
from edgepack.agent.state.holders import Registration
for name, does in zip(("one", "two", "three"), sys.argv[2:]):
    pid = os.getpid() if does == "unknown" else None
    held = Registration(Path(sys.argv[1]), name, pid=pid)
    held.update(digest=name, opening="newer" if does == "opens" else "")
    with held.marks.running():
        pass
    running = held.marks.running()
    if does == "runs":
        running.__enter__()
    globals()[name] = held, running
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("does", "died"),
    [
        (("runs", "idle", "runs"), {"one", "three"}),
        (("idle", "opens", "idle"), {"two"}),
        (("idle", "idle", "idle"), set()),
        (("unknown", "unknown", "unknown"), {"one", "two", "three"}),
        (("unknown", "runs", "idle"), {"one", "two"}),
    ],
)
def test_only_models_that_a_dying_process_ran_or_opened_are_suspect(
    tmp_path: Path, does: tuple[str, ...], died: set[str]
) -> None:
    assert open_holders(tmp_path) == ""
    command = [sys.executable, "-c", HOLD_SEVERAL, str(tmp_path), *does]
    assert subprocess.run(command, check=False, timeout=400).returncode == -signal.SIGKILL
    watch = HolderWatch(tmp_path)
    assert {death.held.model for death in watch.look().deaths} == died
    assert len(watch.look().deaths) == len(died)
    for death in watch.look().deaths:
        assert {one.model for one in death.others} == died - {death.held.model}
    assert [*tmp_path.rglob("*.json")] == []


def test_heartbeats_move_to_the_runtime_directory_once_there_is_one(tmp_path: Path) -> None:
    in_memory, on_disk = holders_folders(tmp_path)
    open_holders(tmp_path)
    registration = Registration(tmp_path, "tiny")
    watch = HolderWatch(tmp_path)
    assert len([*on_disk.iterdir()]) == len(watch.look().held) == 1
    assert open_spool(tmp_path) == ""
    assert open_holders(tmp_path) == ""
    for digest in ("a", "b"):
        registration.update(digest=digest)
        assert [one.digest for one in watch.look().held] == [digest]
        assert len([*in_memory.iterdir()]) == 1
        assert [*on_disk.iterdir()] == []
    registration.close()
    assert watch.look() == Holders()


def test_stopped_process_has_no_heartbeat(tmp_path: Path) -> None:
    registration = Registration(tmp_path, "tiny")
    registration.update(digest="d", opening="e")
    registration.beat(running_since=3.0)
    (one,) = HolderWatch(tmp_path).look().held
    assert (one.digest, one.opening, one.running_since) == ("d", "e", 0.0), (
        "a beat is due each second"
    )
    registration._beat_at = 0.0
    registration.beat(running_since=3.0)
    (one,) = HolderWatch(tmp_path).look().held
    assert (one.running_since, one.model) == (3.0, "tiny")
    assert 0 <= time.monotonic() - one.beat_at < HUNG_S
    registration.close()
    registration.close()
    registration.update(digest="x")
    assert HolderWatch(tmp_path).look() == Holders()


def test_a_registry_that_cannot_be_read_at_the_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "latency")

    monkeypatch.setattr(Path, "exists", fail)
    assert "Input/output error" in open_holders(tmp_path)


def test_a_power_cut_is_no_death_and_hostile_files_are_ignored(tmp_path: Path) -> None:
    open_holders(tmp_path)
    folder = holders_folders(tmp_path)[1]
    other_boot = HELD.encode(held(boot="another boot"))
    boot = Registration(tmp_path / "none", "tiny")._held.boot
    too_long = HELD.encode(held(boot=boot, wrong="x" * (MAX_TEXT + 1)))
    (folder / "huge.json").write_bytes(b"x" * 100_000)
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to("/etc/passwd")
    for name, content in (("boot", other_boot), ("long", too_long), ("bad", b"[" * 9)):
        (folder / f"{name}.json").write_bytes(content)
    assert HolderWatch(tmp_path).look() == Holders()
    assert not (folder / "boot.json").exists()


def test_processes_that_cannot_register_serve(tmp_path: Path) -> None:
    (tmp_path / "holders").write_text("a file in the folder's place")
    registration = Registration(tmp_path, "tiny")
    registration.update(digest="d")
    registration.close()
    assert open_holders(tmp_path) == ""
    assert open_holders(tmp_path / "nowhere") != ""


def answer_of(is_evidence: bool, is_doubtful: bool) -> str:
    return "proven" if is_evidence else "doubtful" if is_doubtful else "fine"


@pytest.mark.parametrize(
    ("holders", "is_evidence", "is_doubtful"),
    [
        (died(9, 5, 1), True, False),
        (died(9, 5, 1, digest="", opening="d"), True, False),
        (died(9, 1), False, True),
        (died(95, 80), False, False),
        (died(9, 5, 1, digest="other"), False, False),
        (died(110, 105, 9, 5, 1), False, True),  # as often before the switch
        (Holders(), False, False),
    ],
)
def test_deaths_are_evidence_if_more_than_before(
    holders: Holders, is_evidence: bool, is_doubtful: bool
) -> None:
    found = find_deaths(holders, "d", since=NOW - 100, now=NOW)
    assert found.answer == answer_of(is_evidence, is_doubtful)
    if is_evidence:
        assert "3 processes" in found.because
    assert DEATHS == 3


def died_together(*ages_s: float) -> tuple[Death, ...]:
    mine, other = held(digest="d"), held(model="other", digest="o")
    pairs = ((mine, other), (other, mine))
    return tuple(Death(NOW - age, one, (beside,)) for age in ages_s for one, beside in pairs)


def test_releases_that_always_died_together_are_named_together() -> None:
    both = Holders(deaths=died_together(9, 5, 1))
    for digest, other in (("d", "other"), ("o", "tiny")):
        found = find_deaths(both, digest, since=NOW - 100, now=NOW)
        assert found.answer == "proven"
        assert f"each ran {other}, too: one of them is the cause" in found.because


def test_release_that_also_died_alone_explains_the_deaths_of_the_other() -> None:
    alone = Death(NOW - 3, held(model="other", digest="o"))
    seen = Holders(deaths=(*died_together(9, 5, 1), alone))
    assert find_deaths(seen, "d", since=NOW - 100, now=NOW).answer == "doubtful"
    guilty = find_deaths(seen, "o", since=NOW - 100, now=NOW)
    assert guilty.answer == "proven"
    assert "one of them" not in guilty.because


@pytest.mark.parametrize(
    ("one", "usual_ms", "is_evidence", "is_doubtful"),
    [
        (held(), 1.0, False, False),
        (held(running_since=NOW - HUNG_S - 1), 1.0, True, False),
        (held(running_since=NOW - HUNG_S + 1), 1.0, False, True),
        (held(running_since=NOW - HUNG_S - 1), 5000.0, False, True),  # 100 s are usual
        (held(running_since=NOW - 1), 1.0, False, False),
        (held(beat_at=NOW - HUNG_S - 1), 1.0, True, False),
        (held(beat_at=NOW - 9), 1.0, False, True),
        (held(beat_at=NOW - 9, every_s=5.0), 1.0, False, False),
        (held(beat_at=NOW - 16, every_s=5.0), 1.0, False, True),
        (held(beat_at=NOW - HUNG_S - 1, every_s=1e9), 1.0, True, False),
        (held(beat_at=NOW - OPENING_S + 1, opening="d"), 1.0, False, True),
        (held(beat_at=NOW - OPENING_S - 1, opening="d"), 1.0, True, False),
        (held(digest="other", beat_at=0.0), 1.0, False, False),
    ],
)
def test_hangs_are_evidence_by_heartbeats_and_by_running_inferences(
    one: Held, usual_ms: float, is_evidence: bool, is_doubtful: bool
) -> None:
    found = find_hangs(Holders(held=(one,)), "d", usual_ms=usual_ms, hung_s=HUNG_S, now=NOW)
    assert found.answer == answer_of(is_evidence, is_doubtful)
    assert not is_evidence or "process 7 hangs" in found.because


def test_crowded_device_gives_processes_more_time() -> None:
    late = held(beat_at=NOW - HUNG_S - 1)
    for crowd, is_evidence in ((1.0, True), (3.0, False)):
        holders = Holders(held=(late,), crowd=crowd)
        found = find_hangs(holders, "d", usual_ms=1.0, hung_s=HUNG_S, now=NOW)
        assert found.answer == answer_of(is_evidence, is_doubtful=not is_evidence)


@pytest.mark.parametrize(("load", "crowd"), [(0.5, 1.0), (8.0, 4.0)])
def test_load_of_each_core_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, crowd: float
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert HolderWatch(tmp_path).look().crowd == crowd


BUSY = Pace(
    intervals=(Interval(latency_ms=1.0, count=50, length_s=60.0),) * 5,
    seen_at=1000.0,
)


@pytest.mark.parametrize(
    ("holders", "before", "switched_at", "quiet_s", "is_evidence", "is_doubtful"),
    [
        (Holders(held=(held(),)), BUSY, 1010.0, 121.0, True, False),
        (Holders(held=(held(),)), BUSY, 1010.0, 119.0, False, True),
        (died(5), BUSY, 1010.0, 121.0, True, False),
        (Holders(), BUSY, 1010.0, 121.0, False, False),  # its application closed the model
        (Holders(held=(held(model="x"),)), BUSY, 1010.0, 121.0, False, False),
        (Holders(held=(held(),)), BUSY, 1061.0, 121.0, False, False),  # silent before the switch
        (Holders(held=(held(),)), Pace(), 1010.0, 121.0, False, False),
    ],
)
def test_silence_of_a_busy_model_is_evidence(
    holders: Holders,
    before: Pace,
    switched_at: float,
    quiet_s: float,
    is_evidence: bool,
    is_doubtful: bool,
) -> None:
    found = find_silence(holders, "tiny", before, switched_at=switched_at, quiet_s=quiet_s)
    assert found.answer == answer_of(is_evidence, is_doubtful)
    assert not is_evidence or "250 inferences ran in 300 s" in found.because


def dies_often(now: float, digest: str) -> Holders:
    one = held(digest=digest)
    return Holders(deaths=tuple(Death(now, one) for _ in range(DEATHS)))


def hangs(now: float, digest: str) -> Holders:
    return Holders(held=(held(digest=digest, beat_at=now - HUNG_S - 1),))


def is_silent(now: float, digest: str) -> Holders:
    return Holders(held=(held(digest=digest, beat_at=now),))


@pytest.mark.parametrize(
    ("holders", "because"),
    [
        (dies_often, "3 processes that held it died"),
        (hangs, "process 7 hangs: no heartbeat for 31 s"),
        (is_silent, "although a process holds the model"),
    ],
)
def test_device_rolls_back_a_release_whose_processes_die_hang_or_are_silent(
    world: World,
    releases: Releases,
    holders: Callable[[float, str], Holders],
    because: str,
) -> None:
    digest = releases.two.ref.digest
    busy = msgspec.structs.replace(BUSY, seen_at=world.now)
    world.paces = {releases.one.ref.digest: busy}
    world.holders = lambda: holders(world.now, digest)
    world.boot().start()
    world.updater.orders.offer(releases.two.order(2, soak_s=3, deadline_s=900))
    assert world.settle(max_turns=2000) == "ROLLED_BACK"
    assert because in world.journal.because
    assert world.pointer is not None
    assert world.pointer.bundle == releases.one.ref


@pytest.mark.parametrize(("soak_s", "is_told"), [(1.0, False), (30.0, True)])
def test_commit_names_the_processes_that_did_not_take_the_release(
    world: World, releases: Releases, soak_s: float, is_told: bool
) -> None:
    old = releases.one.ref.digest
    other = held(pid=8, model="other", digest="x")
    taken = held(pid=9, digest=releases.two.ref.digest)
    world.holders = lambda: Holders(
        held=tuple(
            msgspec.structs.replace(one, beat_at=world.now)
            for one in (held(digest=old), other, taken)
        )
    )
    world.updater.orders.offer(releases.two.order(2, soak_s=soak_s))
    assert world.settle() == "COMMITTED"
    said = "another release still serves in process 7"
    assert (said in world.journal.because) == is_told


def test_release_that_serves_is_no_longer_judged_by_silence(
    world: World, releases: Releases
) -> None:
    digest = releases.two.ref.digest
    latency = LatencyRecorder()
    latency.record(1.0)
    world.collected = [
        Collected(
            telemetry=(
                Telemetry(
                    digest=digest,
                    variant="cpu",
                    provider="CPUExecutionProvider",
                    window_start=0.0,
                    window_s=1.0,
                    latency=latency.snapshot(),
                ),
            )
        )
    ]
    world.paces = {releases.one.ref.digest: msgspec.structs.replace(BUSY, seen_at=world.now)}
    world.holders = lambda: is_silent(world.now, digest)
    world.boot().start()
    world.updater.orders.offer(releases.two.order(2, soak_s=3, deadline_s=900))
    assert world.settle() == "COMMITTED"


@pytest.mark.parametrize(
    ("fields", "is_soaking", "is_evidence"),
    [
        ({"healed": "sample 3 differs", "healed_at": NOW - 60}, False, True),
        ({"healed": "sample 3 differs", "healed_at": NOW - 60, "digest": "e"}, False, False),
        ({"healed": "sample 3 differs", "healed_at": NOW - 2 * KEPT_S}, False, False),
        ({"healed": "sample 3 differs", "healed_at": NOW - 60}, True, False),
        ({}, False, False),
    ],
)
def test_healed_memory_is_reported_for_an_hour_and_ends_no_soak(
    fields: dict[str, object], is_soaking: bool, is_evidence: bool
) -> None:
    one = held(**fields)
    seen = Observed(
        is_soaking=is_soaking, holders=Holders(held=(one,)), digest="d", monotonic_s=NOW
    )
    assert (judge_healed(seen).answer == "proven") is is_evidence
