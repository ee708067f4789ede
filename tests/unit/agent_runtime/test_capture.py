"""Inputs are captured for a build if enabled: few, small, private, and for a limited time."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from edgepack.agent.cli.commands import cli
from edgepack.agent.serving import capture
from edgepack.agent.serving.model import open_model
from edgepack.agent.state.captured import (
    CaptureSettings,
    Kept,
    captured_folder,
    draw_priority,
    forget_samples,
    keep_sample,
    kept_samples,
    switch_capture,
)
from edgepack.agent.state.pointer import pointer_path
from edgepack.errors import DeviceError
from tests.simulators.pointers import write_pointer
from tests.unit.agent_runtime.examples import install_model

BYTES = 64 * 1024


def settings(samples: int, *, max_bytes: int = BYTES, reserve: int = 0) -> CaptureSettings:
    return CaptureSettings(samples=samples, max_bytes=max_bytes, disk_reserve_bytes=reserve)


def files(state_dir: Path) -> list[Path]:
    return sorted(captured_folder(state_dir).glob("*.npz"))


def numbers(state_dir: Path) -> list[int]:
    return sorted(int(np.load(path)["x"].flat[0]) for path in files(state_dir))


def keep(state_dir: Path, value: int, kept: CaptureSettings, *, priority: int = -1) -> None:
    feeds = {"x": np.full((1, 3, 8, 8), value, np.float32)}
    chosen = draw_priority() if priority < 0 else priority
    keep_sample(state_dir, "tiny", feeds, kept, priority=chosen)


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state folder with a serving model; every inference is offered."""
    monkeypatch.setattr(capture, "OFFER_S", 0.0)
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    return tmp_path


def test_a_folder_with_a_samples_name_does_not_stop_the_upkeep(serving: Path) -> None:
    assert switch_capture(serving, settings(5)) == ""
    for number in range(5):
        keep(serving, number, settings(5), priority=number + 10)
    folder = captured_folder(serving)
    (folder / f"{0:016x}-tiny.npz" / "inner").mkdir(parents=True)
    (folder / f"{1:016x}-tiny.npz").symlink_to("/etc/passwd")
    os.mkfifo(folder / f"{2:016x}-tiny.npz")
    keep(serving, 9, settings(5), priority=99)
    assert numbers_of(kept_samples(serving, "tiny")) == [11, 12, 13, 14, 99]
    assert switch_capture(serving, settings(2)) == ""
    assert numbers_of(kept_samples(serving, "tiny")) == [14, 99]
    assert {path.name for path in folder.iterdir()} == {
        "settings.json",
        f"{14:016x}-tiny.npz",
        f"{99:016x}-tiny.npz",
    }


def test_a_huge_file_with_a_samples_name_takes_the_place_of_no_sample(tmp_path: Path) -> None:
    kept = settings(5, max_bytes=10**6)
    assert switch_capture(tmp_path, kept) == ""
    huge = captured_folder(tmp_path) / f"{2**64 - 1:016x}-tiny.npz"
    for number in range(5):
        keep(tmp_path, number, kept, priority=number + 10)
    with huge.open("wb") as file:
        file.truncate(50 * 10**9)
    keep(tmp_path, 9, kept, priority=99)
    assert numbers_of(kept_samples(tmp_path, "tiny")) == [11, 12, 13, 14, 99]
    assert not huge.exists()


def numbers_of(kept: list[Kept]) -> list[int]:
    return [each.priority for each in kept]


def run(state_dir: Path, count: int) -> None:
    with open_model("tiny", state_dir, threads=1) as model:
        for number in range(count):
            model.run({"x": np.full((1, 3, 8, 8), number, np.float32)})
            model._here().keeper.write()


def test_by_default_nothing_is_kept(serving: Path) -> None:
    assert switch_capture(serving, settings(0)) == ""
    run(serving, 5)
    assert not captured_folder(serving).exists()


def test_what_is_fed_is_kept_as_a_build_reads_it_and_for_nobody_else(serving: Path) -> None:
    switch_capture(serving, settings(100))
    run(serving, 5)
    assert numbers(serving) == [0, 1, 2, 3, 4]
    for path in files(serving):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (shape,) = (np.load(path)[name].shape for name in np.load(path).files)
        assert shape == (1, 3, 8, 8)
    assert stat.S_IMODE(captured_folder(serving).stat().st_mode) & 0o007 == 0


def test_no_more_than_so_many_are_kept_and_each_has_the_same_chance(tmp_path: Path) -> None:
    kept = settings(10, max_bytes=10**6)
    switch_capture(tmp_path, kept)
    for number in range(400):
        keep(tmp_path, number, kept)
        assert len(files(tmp_path)) <= 10
    found = numbers(tmp_path)
    assert len(found) == 10
    assert found[0] < 200 < found[-1], "neither the first nor the last ones alone"


def test_bytes_are_bounded_and_what_is_too_large_is_not_kept(tmp_path: Path) -> None:
    kept = settings(1000, max_bytes=5000)
    switch_capture(tmp_path, kept)
    rng = np.random.default_rng(0)
    for size in [100] * 50 + [5000]:
        feeds = {"x": rng.standard_normal(size).astype(np.float32)}
        keep_sample(tmp_path, "tiny", feeds, kept, priority=draw_priority())
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 5000
    assert 5 <= len(files(tmp_path)) <= 10


def test_a_disk_without_room_to_spare_gets_none(tmp_path: Path) -> None:
    full = settings(10, reserve=2**62)
    switch_capture(tmp_path, full)
    keep(tmp_path, 1, full)
    assert files(tmp_path) == []


def test_what_ranks_lower_than_all_that_is_kept_is_left_out(tmp_path: Path) -> None:
    kept = settings(2)
    switch_capture(tmp_path, kept)
    for value, priority in ((1, 50), (2, 60), (3, 40), (4, 55)):
        keep(tmp_path, value, kept, priority=priority)
    assert numbers(tmp_path) == [2, 4]


def test_switching_it_off_removes_all_and_a_running_application_writes_no_more(
    serving: Path,
) -> None:
    switch_capture(serving, settings(100))
    with open_model("tiny", serving, threads=1) as model:
        feeds = {"x": np.zeros((1, 3, 8, 8), np.float32)}
        model.run(feeds)
        model._here().keeper.write()
        assert len(files(serving)) == 1
        switch_capture(serving, settings(0))
        for _ in range(3):
            model.run(feeds)
            model._here().keeper.write()
    assert not captured_folder(serving).exists()


def test_they_go_with_their_model_and_those_of_others_stay(serving: Path) -> None:
    write_pointer(serving, install_model(serving, 1, scale=1.0, name="other-tiny"))
    switch_capture(serving, settings(100))
    keep(serving, 1, settings(100))
    feeds = {"x": np.ones((1,), np.float32)}
    keep_sample(serving, "other-tiny", feeds, settings(100), priority=7)
    forget_samples(serving, "tiny")
    assert [path.name[17:] for path in files(serving)] == ["other-tiny.npz"]
    with open_model("tiny", serving, threads=1) as model:
        pointer_path(serving, "tiny").unlink()
        model.run({"x": np.zeros((1, 3, 8, 8), np.float32)})
    assert kept_samples(serving, "tiny") == [], "its application runs on, and keeps nothing"


def test_an_agent_that_starts_clears_what_does_not_belong_there(serving: Path) -> None:
    switch_capture(serving, settings(100))
    for number in range(5):
        keep(serving, number, settings(100), priority=number)
    folder = captured_folder(serving)
    (folder / ".left.npz.x").write_bytes(b"half")
    (folder / f"{1:016x}-gone.npz").write_bytes(b"of a model that is not here")
    switch_capture(serving, settings(3))
    assert numbers(serving) == [2, 3, 4], "there may be fewer now"
    assert len(list(folder.iterdir())) == 4


def test_a_file_or_link_in_the_place_of_the_folder_is_put_aside(tmp_path: Path) -> None:
    captured_folder(tmp_path).symlink_to("/etc")
    assert switch_capture(tmp_path, settings(3)) == ""
    assert captured_folder(tmp_path).is_dir()
    assert not captured_folder(tmp_path).is_symlink()


def test_the_command_copies_them_and_says_what_comes_next(tmp_path: Path) -> None:
    switch_capture(tmp_path, settings(10))
    for number in range(3):
        keep(tmp_path, number, settings(10))
    target = tmp_path / "out"
    words = ["samples", "tiny", "--state-dir", str(tmp_path), "-o", str(target)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"3 samples of tiny in {target}\nnext: edgepack build")
    assert sorted(path.name for path in target.iterdir()) == [f"{i:05}.npz" for i in range(3)]
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in target.iterdir()} == {0o600}
    again = CliRunner().invoke(cli, words)
    assert isinstance(again.exception, DeviceError)
    assert "not empty" in str(again.exception)
    none = CliRunner().invoke(cli, [*words[:1], "../tiny", *words[2:]])
    assert isinstance(none.exception, DeviceError)
    assert "samples = 100 below [capture]" in str(none.exception)
