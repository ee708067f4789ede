"""Slots of the agent: hostile archives, pointers, and the launcher that reads the pointers."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgepack.agent.doctor.agent_slots import check_slots
from edgepack.agent.doctor.findings import Device
from edgepack.agent.self_update import environment_archive
from edgepack.agent.self_update.agent_installer import AgentInstaller
from edgepack.agent.self_update.agent_slots import AgentSlots, find_agent_slots
from edgepack.agent.self_update.environment_archive import (
    measure_environment,
    pack_environment,
    unpack_environment,
)
from edgepack.errors import BundleError, DeviceError
from tests.simulators.launched_agent import PACKAGES, make_environment, write_launcher

OTHER = "lib/python3.1/site-packages"


def archive_of(*entries: tuple[str, bytes], end: bytes = bytes(2 * tarfile.BLOCKSIZE)) -> bytes:
    """Return a tar with these contents as they are."""
    output = io.BytesIO()
    for path, content in entries:
        header = tarfile.TarInfo(path)
        header.size = len(content)
        output.write(header.tobuf(tarfile.USTAR_FORMAT) + content)
        output.write(bytes(-len(content) % tarfile.BLOCKSIZE))
    output.write(end)
    output.write(bytes(-output.tell() % tarfile.RECORDSIZE))
    return output.getvalue()


def special(path: str, kind: bytes, target: str = "") -> bytes:
    header = tarfile.TarInfo(path)
    header.type, header.linkname = kind, target
    return header.tobuf(tarfile.USTAR_FORMAT) + archive_of()


FINE = zlib.compress(b"fine")
HOSTILE = {
    "no archive": (b"no archive" * 100, "not a POSIX"),
    "nothing": (archive_of(), "has no files"),
    "cut": (archive_of((f"{PACKAGES}/a", FINE))[:700], "truncated"),
    "more behind the end": (archive_of((f"{PACKAGES}/a", FINE)) + b"more", "follows the end"),
    "link": (special(f"{PACKAGES}/a", tarfile.SYMTYPE, "/etc/passwd"), "a symbolic link"),
    "device": (special(f"{PACKAGES}/a", tarfile.CHRTYPE), "a character device"),
    "way out": (archive_of((f"{PACKAGES}/../../../../a", FINE)), "leads out"),
    "absolute": (archive_of(("/etc/a", FINE)), "is absolute"),
    "outside": (archive_of(("bin/python", FINE)), "is not a file of an environment"),
    "list of digests": (archive_of(("digests", FINE)), "is not a file of an environment"),
    "other Python": (archive_of((f"{OTHER}/a", FINE)), "is not a file of an environment"),
    "odd name": (archive_of((f"{PACKAGES}/a;b", FINE)), "is not a file of an environment"),
    "twice": (archive_of((f"{PACKAGES}/a", FINE), (f"{PACKAGES}/a", FINE)), "stands twice"),
    "file as folder": (
        archive_of((f"{PACKAGES}/a", FINE), (f"{PACKAGES}/a/b", FINE)),
        "stands twice",
    ),
    "not compressed": (archive_of((f"{PACKAGES}/a", b"plain")), "cannot be decompressed"),
    "half": (archive_of((f"{PACKAGES}/a", FINE[:6])), "is truncated"),
    "empty": (archive_of((f"{PACKAGES}/a", b"")), "is truncated"),
    "more": (archive_of((f"{PACKAGES}/a", FINE + b"more")), "follows the compressed content"),
    "large": (archive_of((f"{PACKAGES}/a", zlib.compress(bytes(5_000_000)))), "exceeds"),
    "many": (archive_of(*((f"{PACKAGES}/{name}", FINE) for name in "abcd")), "more than 3 files"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_rejected_and_leaves_no_slot(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_archive, "MAX_BYTES", 4_000_000)
    monkeypatch.setattr(environment_archive, "MAX_FILES", 3)
    content, expected = HOSTILE[name]
    archive = tmp_path / "agent.tar"
    archive.write_bytes(content)
    slots = AgentSlots(tmp_path / "slots")
    with pytest.raises(BundleError) as error:
        slots.install(archive, "2.0")
    assert expected in error.value.problem
    assert list((tmp_path / "slots").iterdir()) == []


def test_packed_files_come_back_and_equal_files_give_equal_bytes(tmp_path: Path) -> None:
    contents = {
        f"{PACKAGES}/edgepack/a.py": b"first",
        f"{PACKAGES}/numpy/large.so": bytes(range(256)) * 20_000,
        f"{PACKAGES}/z.py": b"",
    }
    files = {}
    for number, (path, content) in enumerate(contents.items()):
        files[path] = tmp_path / str(number)
        files[path].write_bytes(content)
    archive = tmp_path / "agent.tar"
    with archive.open("wb") as output:
        starts = pack_environment(files, output)
    again = io.BytesIO()
    pack_environment(dict(reversed(files.items())), again)
    assert archive.read_bytes() == again.getvalue()
    assert len(starts) == 3
    assert again.getvalue()[starts[-1] :].startswith(f"{PACKAGES}/edgepack/a.py".encode())
    digests = unpack_environment(archive, tmp_path / "out")
    assert {path: (tmp_path / "out" / path).read_bytes() for path in digests} == contents
    assert digests == {path: hashlib.sha256(one).hexdigest() for path, one in contents.items()}


PRINTS = """import os, sys
if "run" in sys.orig_argv:
    print(sys.prefix, flush=True)
    os._exit(0)
"""


class Machine:
    """A folder of slots, with a launcher whose agents print their place and end."""

    def __init__(self, folder: Path) -> None:
        self.slots = folder / "slots"
        self.archive = folder / "agent.tar"
        self.archive.write_bytes(make_environment("", PRINTS))
        self.launcher = folder / "launcher"
        write_launcher(self.launcher, self.slots)
        (folder / "packaged-agent").write_text("#!/bin/sh\necho packaged\n")

    def view(self, running: str) -> AgentSlots:
        """Return the slots as the agent in a slot sees them."""
        return AgentSlots(self.slots, self.slots / running if running else Path(sys.prefix))

    def start(self, *words: str) -> str:
        """Return the slot that the launcher starts."""
        command = [str(self.launcher), *(words or ("run",))]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return said.strip().rpartition("/")[2]

    def bring(self, running: str, version: str, *, needs_broker: bool = True) -> str:
        """Put a version on trial; return its slot."""
        slots = self.view(running)
        slot = slots.install(self.archive, version)
        slots.begin_trial(slot.name, needs_broker=needs_broker)
        return slot.name


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_launcher_tries_three_times_and_then_goes_back_for_good(machine: Machine) -> None:
    assert machine.start() == "packaged"
    assert machine.bring("", "2.0") == "a"
    assert [machine.start() for _ in range(5)] == ["a", "a", "a", "packaged", "packaged"]
    assert not (machine.slots / "trial").exists()
    assert machine.bring("", "3.0") == "a"
    assert machine.start() == "a"
    machine.view("a").commit()
    machine.view("a").commit()
    assert [machine.start() for _ in range(5)] == ["a"] * 5
    assert machine.view("a").running_version() == "3.0"


def test_trial_beside_an_active_slot_commits_or_goes_back_to_it(machine: Machine) -> None:
    machine.bring("", "2.0")
    machine.view("a").commit()
    assert machine.bring("a", "3.0") == "b"
    machine.view("b").revert("3.0")
    assert machine.start() == "a"
    assert machine.bring("a", "3.0") == "b"
    machine.view("b").commit()
    assert machine.start() == "b"
    machine.view("b").revert("3.0")  # Also after the commit, and again after a power cut.
    machine.view("b").revert("3.0")
    assert machine.start() == "a"
    machine.view("a").revert("2.0")
    assert machine.start() == "packaged"


def test_damaged_slot_never_runs(machine: Machine) -> None:
    machine.bring("", "2.0")
    machine.view("a").commit()
    machine.bring("a", "3.0")
    machine.view("b").commit()
    file = machine.slots / "b" / PACKAGES / "mark.txt"
    file.write_text("x")
    assert machine.start() == "a"
    assert "slot b of the agent (version 3.0) is damaged" in machine.view("a").trouble
    assert "version 2.0 runs in its place" in machine.view("a").trouble
    assert machine.view("b").trouble == ""
    file.unlink()
    assert machine.start() == "a"
    (machine.slots / "a/digests").write_text("")
    assert machine.start() == "packaged"
    assert "slot b of the agent (version 3.0) is damaged" in machine.view("").trouble


@pytest.mark.parametrize("line", ["", "../../tmp x", "a", "a b c d", "\0\xff" * 500])
def test_malformed_pointers_start_the_packaged_agent(machine: Machine, line: str) -> None:
    machine.bring("", "2.0")
    for name in ("trial", "active", "previous", "tries"):
        (machine.slots / name).write_text(line)
    assert machine.start() == "packaged"
    assert machine.start() == "packaged"
    assert machine.bring("", "3.0") in ("a", "b")


def test_commands_get_the_packaged_agent(machine: Machine) -> None:
    machine.bring("", "2.0")
    machine.view("a").commit()
    assert machine.start("status") == "packaged"


def test_agent_that_is_not_on_trial_commits_nothing(machine: Machine) -> None:
    machine.bring("", "2.0")
    with pytest.raises(DeviceError, match="not on trial"):
        machine.view("").commit()


def test_slots_are_those_that_the_launcher_names(tmp_path: Path) -> None:
    assert find_agent_slots(lambda _name: None) is None
    assert find_agent_slots(lambda _name: "relative") is None
    assert find_agent_slots(lambda _name: str(tmp_path)) is not None


def test_commit_waits_for_the_broker(machine: Machine) -> None:
    machine.bring("", "2.0")
    answers = [False, True, False]
    facts = {"firmware_version": "2.0"}

    def commit(slot: str) -> str:
        settings, slots = Path("agent.toml"), machine.view(slot)
        installer = AgentInstaller(
            slots, settings, is_connected=lambda: answers.pop(0), restart=lambda: None
        )
        return installer.run("commit", facts).verdict

    assert commit("a") == "retry"
    assert not (machine.slots / "active").exists()
    assert commit("a") == "go"
    assert machine.start() == "a"
    # An update by hand needs no broker.
    machine.bring("a", "3.0", needs_broker=False)
    assert commit("b") == "go"
    assert machine.start() == "b"


def test_command_replaces_the_committed_agent_and_not_its_own(machine: Machine) -> None:
    machine.bring("", "2.0")
    machine.view("a").commit()
    command = AgentInstaller(
        machine.view(""), Path("agent.toml"), is_connected=None, restart=lambda: None
    )
    assert command.version == "2.0"
    assert machine.bring("", "3.0") == "b"


def test_agent_that_cannot_prove_itself_gets_no_trial(machine: Machine) -> None:
    installer = AgentInstaller(
        machine.view(""), Path("missing.toml"), is_connected=None, restart=lambda: None
    )
    facts = {
        "firmware_version": "2.0",
        "firmware_file": str(machine.archive),
        "bundle_folder": str(machine.slots),
    }
    verdict = installer.run("install", facts)
    assert verdict.verdict == "refuse"
    assert "the new agent does not prove itself" in verdict.because
    assert "missing.toml" in verdict.because or "settings" in verdict.because
    assert machine.start() == "packaged"


def test_slot_without_room_is_not_begun_and_the_slots_stay(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.bring("", "2.0")
    machine.view("a").commit()
    machine.bring("a", "3.0")
    before = {path: path.read_bytes() for path in machine.slots.rglob("*") if path.is_file()}
    taken = sum(512 * path.lstat().st_blocks for path in (machine.slots / "b").rglob("*"))
    needed = measure_environment(machine.archive)
    assert 0 < needed <= taken
    full = SimpleNamespace(f_bavail=0, f_frsize=os.statvfs(machine.slots).f_frsize)
    monkeypatch.setattr("os.statvfs", lambda _path: full)
    installer = AgentInstaller(
        machine.view(""), Path("agent.toml"), is_connected=None, restart=lambda: None
    )
    (machine.slots / "b").rename(machine.slots.parent / "b")
    before = {path: one for path, one in before.items() if "slots/b" not in str(path)}
    facts = {"firmware_version": "4.0", "firmware_file": str(machine.archive), "bundle_folder": ""}
    verdict = installer.run("install", facts)
    assert verdict.verdict == "refuse"
    assert f"needs {needed} bytes, 0 are free" in verdict.because
    assert {
        path: path.read_bytes() for path in machine.slots.rglob("*") if path.is_file()
    } == before


def test_doctor_shows_a_trial_and_damaged_slots(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEPACK_AGENT_SLOTS", str(machine.slots))

    def found() -> list[tuple[str, str]]:
        return [(one.verdict, one.fact) for one in check_slots(Device(config=None, now=0.0))]

    assert found() == []
    machine.bring("", "2.0")
    machine.start()
    ((verdict, fact),) = found()
    assert verdict == "warning"
    assert fact == "version 2.0 of the agent (slot a, trial) is on trial, start 1 of 3"
    machine.view("a").commit()
    assert found() == [("ok", "version 2.0 of the agent (slot a, active) is whole")]
    machine.bring("a", "3.0")
    machine.view("b").commit()
    (machine.slots / "b" / PACKAGES / "mark.txt").write_text("x")
    (machine.slots / "a/digests").write_text("")
    active, previous = found()
    assert active[0] == "wrong"
    assert "(slot b, active) is damaged and not started: lib/python3" in active[1]
    assert active[1].endswith("mark.txt differs")
    assert previous[0] == "warning"
    assert "digests differs" in previous[1]
