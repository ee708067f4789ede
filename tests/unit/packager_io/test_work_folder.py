"""A build has its output to itself, and clears away what a killed one left."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from edgepack.errors import BuildError
from edgepack.packager.bundling.output import disk_error, publish, work_folder


def test_the_folder_lies_beside_the_output_and_is_gone_at_the_end(tmp_path: Path) -> None:
    with work_folder(tmp_path / "ocr-1.2.0.edgepack") as work:
        assert work.parent == tmp_path
        assert work.name.startswith(".ocr-1.2.0.edgepack.")
    assert list(tmp_path.iterdir()) == []


def test_a_second_build_of_the_same_output_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    output = tmp_path / "ocr-1.2.0.edgepack"
    with (
        work_folder(output) as first,
        pytest.raises(BuildError, match=r"another build of ocr-1\.2\.0\.edgepack is running"),
        work_folder(output),
    ):
        pass
    assert not first.exists()
    with work_folder(output):
        pass


def test_two_outputs_of_one_folder_do_not_meet(tmp_path: Path) -> None:
    with work_folder(tmp_path / "ocr-1.2.0") as one, work_folder(tmp_path / "ocr-1.2.0.edgepack"):
        assert one.is_dir()


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path: Path) -> None:
    output = tmp_path / "ocr-1.2.0.edgepack"
    left = tmp_path / ".ocr-1.2.0.edgepack.work-abcdefgh"
    (left / "variants").mkdir(parents=True)
    (tmp_path / ".ocr-1.2.0.edgepack.lock").touch()
    other = tmp_path / ".ocr-1.2.0.work-abcdefgh"
    other.mkdir()
    with work_folder(output) as work:
        assert not left.exists()
        assert other.is_dir()
        assert work.is_dir()
    assert list(tmp_path.iterdir()) == [other]


def test_the_lock_is_held_by_a_process_and_not_by_a_file(tmp_path: Path) -> None:
    output = tmp_path / "ocr-1.2.0.edgepack"
    with (tmp_path / ".ocr-1.2.0.edgepack.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BuildError, match="is running"), work_folder(output):
            pass
    with work_folder(output):
        pass


def test_a_folder_gets_its_name_when_every_file_and_folder_in_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "ocr-1.2.0"
    flushed: dict[int, bool] = {}
    flush = os.fsync

    def flush_and_note(descriptor: int) -> None:
        flush(descriptor)
        flushed[os.fstat(descriptor).st_ino] = output.exists()

    monkeypatch.setattr("os.fsync", flush_and_note)
    with work_folder(output) as work:
        bundle = work / "bundle"
        (bundle / "models/cpu").mkdir(parents=True)
        for name in ("manifest.json", "models/cpu/model.onnx", "models/cpu/model.onnx.data"):
            (bundle / name).write_bytes(b"content")
        publish(bundle, output, work)
    inside = [output, *output.rglob("*")]
    assert len(inside) == 6
    assert [flushed.get(path.stat().st_ino) for path in inside] == [False] * 6
    assert flushed[tmp_path.stat().st_ino], "the new name, last"


def test_a_folder_that_is_there_is_replaced_whole(tmp_path: Path) -> None:
    output = tmp_path / "ocr-1.2.0"
    output.mkdir()
    (output / "old").touch()
    with work_folder(output) as work:
        made = work / "bundle"
        made.mkdir()
        (made / "new").write_text("new")
        publish(made, output, work)
    assert [path.name for path in output.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [output], "and the old one is gone"


def test_a_full_disk_is_told_with_the_file_and_what_is_free(tmp_path: Path) -> None:
    output = tmp_path / "ocr-1.2.0.edgepack"
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "weights"))
    told = disk_error(full, output)
    assert told.problem.startswith("the disk was full; nothing was written to ocr-1.2.0.edgepack")
    assert told.found_in == str(tmp_path / "weights")
    assert disk_error(OSError(errno.ENOSPC, "No space left"), output).found_in == str(tmp_path)


def test_another_error_of_a_file_is_told_in_the_systems_words(tmp_path: Path) -> None:
    output = tmp_path / "ocr-1.2.0.edgepack"
    told = disk_error(PermissionError(errno.EACCES, "Permission denied"), output)
    assert told.problem == "the build cannot read or write a file: Permission denied"
    assert told.found_in == str(output)
    error = OSError(errno.EIO, None)
    assert disk_error(error, output).problem.endswith(f": {os.strerror(errno.EIO)}")
