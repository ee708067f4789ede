"""Folders that a group may write to: root reads no link and opens no device there."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.agent.cli.samples import export_samples
from edgepack.agent.state.captured import CaptureSettings, captured_folder, switch_capture
from edgepack.agent.state.holders import HolderWatch, holders_folders, open_holders
from edgepack.agent.state.state_file import read_regular, read_shared
from edgepack.agent.telemetry.collector import LatencyCollector
from edgepack.agent.telemetry.spool import open_spool, spool_folder
from edgepack.errors import DeviceError

TRACED = """
import sys
from pathlib import Path
from edgepack.agent.telemetry.collector import LatencyCollector
print(LatencyCollector(Path(sys.argv[1])).collect().dropped)
"""


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    assert open_spool(tmp_path) == ""
    yield tmp_path
    shutil.rmtree(spool_folder(tmp_path).resolve())


def test_a_link_and_a_device_in_the_spool_are_not_opened(state_dir: Path) -> None:
    secret = state_dir / "secret"
    secret.write_text("{}")
    spool = spool_folder(state_dir)
    (spool / "link.json").symlink_to(secret)
    (spool / "tty.json").symlink_to("/dev/ptmx")
    os.mkfifo(spool / "pipe.json")
    (spool / "gone.json").symlink_to("nowhere")
    (spool / "\x1b[31m\n.json").write_text("{")
    names = ["\\x1b[31m\\n.json", "gone.json", "link.json", "pipe.json", "tty.json"]
    assert open_holders(state_dir) == ""
    held = holders_folders(state_dir)[0]
    (held / "tty.json").symlink_to("/dev/ptmx")
    os.mkfifo(held / "pipe.json")
    if os.geteuid() == 0:
        os.mknod(spool / "device.json", stat.S_IFCHR | 0o666, os.makedev(5, 2))
        names.append("device.json")
        os.mknod(held / "device.json", stat.S_IFCHR | 0o666, os.makedev(5, 2))
    opened: list[tuple[str, int]] = []

    def note(event: str, words: tuple[object, ...]) -> None:
        if event == "open" and is_watching:
            opened.append((str(words[0]), int(str(words[2]))))

    is_watching = True
    sys.addaudithook(note)
    collected = LatencyCollector(state_dir).collect()
    HolderWatch(state_dir).look()
    is_watching = False
    assert sorted(reason.split(":")[0] for reason in collected.dropped) == sorted(names)
    for path, flags in opened:
        if path.startswith(f"{spool}/"):
            assert flags & os.O_PATH, path
            assert flags & os.O_NOFOLLOW, path
    assert secret.read_text() == "{}"
    assert not list(spool.glob("*.json")), "what cannot be read is removed, not what it points to"


def test_the_same_in_a_process_of_its_own(state_dir: Path) -> None:
    (spool_folder(state_dir) / "link.json").symlink_to("/etc/shadow")
    done = subprocess.run(
        [sys.executable, "-c", TRACED, str(state_dir)],
        capture_output=True,
        text=True,
        check=True,
        timeout=400,
    )
    assert "link.json" in done.stdout
    assert "root:" not in done.stdout + done.stderr


def test_samples_are_copied_from_files_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not for everybody")
    assert switch_capture(tmp_path, CaptureSettings(samples=5, max_bytes=1000)) == ""
    (captured_folder(tmp_path) / f"{1:016x}-tiny.npz").symlink_to(secret)
    with pytest.raises(DeviceError, match="no captured input of model"):
        export_samples(tmp_path, "tiny", tmp_path / "out")


def test_a_link_that_its_owner_made_is_followed_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "package").write_bytes(b"content")
    (tmp_path / "link").symlink_to("package")
    assert read_regular(tmp_path / "link") == b"content"
    with pytest.raises(OSError, match="not a regular file"):
        read_shared(tmp_path / "link")
    for place in ("/dev/null", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(Path(place))
    assert read_regular(tmp_path / "none") is read_shared(tmp_path / "none") is None
