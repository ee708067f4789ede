"""Serving: the pointer decides the release, and no failure of a new model affects inferences."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.runtime import slot_opening
from edgepack.agent.serving import following
from edgepack.agent.serving.model import open_model
from edgepack.agent.state.holders import HolderWatch, open_holders
from edgepack.agent.state.pointer import ActivePointer, pointer_path
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.telemetry import record, spool
from edgepack.agent.telemetry.collector import LatencyCollector
from edgepack.bundle.manifest import GOLDEN_FILE, MANIFEST_FILE
from edgepack.errors import BundleError, DeviceError
from edgepack.wire.reports import Choice
from tests.simulators.manifests import CPU
from tests.simulators.pointers import write_pointer
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.examples import install_model, make_inputs

FAST_S = 0.005


def test_the_active_model_runs_and_tells_what_it_is(tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    with open_model("tiny", tmp_path, threads=1) as model:
        outputs = model.run(make_inputs(1)[0])
        assert outputs["y"].shape == (1, 4)
        assert model.bundle.version == "1.1.0"
        assert model.choice.provider == CPU
        assert model.inputs[0].name == "x"
        assert model.outputs[0].name == "y"
    with pytest.raises(ValueError, match="the model is closed"):
        model.run(make_inputs(1)[0])


OPEN_IN_THREADS = """
import sys, threading
from pathlib import Path
import numpy as np
from edgepack.agent import open_model

sys.setswitchinterval(1e-6)
start = threading.Barrier(8)
outputs = []

def use():
    start.wait()
    with open_model("tiny", Path(sys.argv[1])) as model:
        feeds = {one.name: np.ones(one.shape, one.dtype) for one in model.inputs}
        outputs.extend(model.run(feeds))

threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*outputs)
"""


def test_threads_of_a_new_process_open_the_model_at_the_same_time(tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    command = [sys.executable, "-c", OPEN_IN_THREADS, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["y"] * 8


FORGETFUL = """
import gc, os, sys, threading
from edgepack.agent import open_model
from edgepack.agent.state import changes
from edgepack.agent.state.holders import holders_folders
from pathlib import Path
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.examples import make_inputs

def use():
    open_model("tiny", sys.argv[1]).run(make_inputs(1)[0])

def registered():
    return [path for folder in holders_folders(Path(sys.argv[1])) for path in folder.glob("*.json")]

use()
gc.collect()
wait_until(lambda: not registered(), "a model that nobody refers to is closed")
threads = 1 + (changes.notifier() is not None)
wait_until(lambda: threading.active_count() == threads, "its thread ends")
model = open_model("tiny", sys.argv[1])
session = model.session()
del model
gc.collect()
session.run(make_inputs(1)[0])
pid = os.fork()
if not pid:
    sys.exit()
os.waitpid(pid, 0)
assert registered(), "the child's exit ended the parent's registration"
"""


def test_a_process_that_dropped_its_model_without_closing_has_not_died(tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    open_holders(tmp_path)
    command = [sys.executable, "-c", FORGETFUL, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr
    assert HolderWatch(tmp_path).look().deaths == ()


CHILDREN = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from edgepack.agent import open_model
from tests.unit.agent_runtime.examples import make_inputs

def use(_=None):
    global model
    model = open_model("tiny", sys.argv[1])
    model.run(make_inputs(1)[0])

def use_again(_=None):
    model.run(make_inputs(1)[0])

fork = multiprocessing.get_context("fork")
for before in (lambda: None, use):
    before()
    for act in (use, use_again)[: 2 if before is use else 1]:
        child = fork.Process(target=act)
        child.start()
        child.join()
        assert child.exitcode == 0
        with ProcessPoolExecutor(2, fork) as pool:
            list(pool.map(act, range(2)))
"""


def test_children_of_multiprocessing_that_end_have_not_died(tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    open_holders(tmp_path)
    command = [sys.executable, "-c", CHILDREN, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr
    assert HolderWatch(tmp_path).look().deaths == ()


def test_the_state_folder_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    monkeypatch.setenv("EDGEPACK_STATE_DIR", str(tmp_path))
    with open_model("tiny") as model:
        assert model.bundle.release == 1


def test_without_an_active_model_opening_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no model 'tiny' is active on this device") as caught:
        open_model("tiny", tmp_path)
    assert "edgepack-agent install" in str(caught.value)


def test_a_model_that_is_not_here_is_not_opened_and_the_others_are_named(tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0, name="other"))
    with pytest.raises(DeviceError, match="no model 'tiny' is active") as caught:
        open_model("tiny", tmp_path)
    assert "which has other" in str(caught.value)


def test_a_name_that_no_model_can_have_is_no_way_out_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"'\.\./tiny' is not a name of a model"):
        open_model("../tiny", tmp_path)


def test_several_models_are_open_at_once_and_each_follows_its_own_pointer(tmp_path: Path) -> None:
    for name, scale in (("tiny", 1.0), ("other", 10.0)):
        write_pointer(tmp_path, install_model(tmp_path, 1, scale=scale, name=name))
    with (
        open_model("tiny", tmp_path, poll_s=FAST_S) as tiny,
        open_model("other", tmp_path, poll_s=FAST_S) as other,
    ):
        write_pointer(tmp_path, install_model(tmp_path, 2, scale=2.0, name="other"))
        wait_until(lambda: other.bundle.release == 2)
        assert tiny.bundle.release == 1
        assert other.run(make_inputs(1)[0])


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [Path.unlink, one_bit])
@pytest.mark.parametrize("file", [MANIFEST_FILE, GOLDEN_FILE, "model/cpu/model.onnx"])
def test_a_slot_whose_files_changed_is_not_served_and_the_agent_hears_of_it(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    pointer = install_model(tmp_path, 1, scale=1.0)
    damage(slot_folder(tmp_path, pointer.digest) / file)
    write_pointer(tmp_path, pointer)
    with pytest.raises(BundleError, match=f"{file}|manifest"):
        open_model("tiny", tmp_path)
    (trouble,) = LatencyCollector(tmp_path).collect().troubles
    assert trouble.model == "tiny"
    assert trouble.because.startswith("it cannot be opened: ")


def test_a_new_pointer_swaps_the_model_and_the_old_slot_may_go(tmp_path: Path) -> None:
    first = install_model(tmp_path, 1, scale=1.0)
    write_pointer(tmp_path, first)
    feeds = make_inputs(1)[0]
    with open_model("tiny", tmp_path, poll_s=FAST_S) as model:
        before = model.run(feeds)["y"]
        for path in sorted(slot_folder(tmp_path, first.digest).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        assert np.array_equal(model.run(feeds)["y"], before)
        write_pointer(tmp_path, install_model(tmp_path, 2, scale=2.0))
        wait_until(lambda: model.bundle.release == 2)
        assert model.run(feeds)["y"] == pytest.approx(before * 2, rel=1e-5)


def test_a_new_model_that_cannot_be_opened_leaves_the_old_one_serving_and_is_told(
    tmp_path: Path,
) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    with open_model("tiny", tmp_path, poll_s=FAST_S) as model:
        broken = install_model(tmp_path, 2, scale=2.0)
        file = slot_folder(tmp_path, broken.digest) / "model/cpu/model.onnx"
        size_bytes = file.stat().st_size
        file.write_bytes(b"broken")
        write_pointer(tmp_path, broken)
        wait_until(lambda: bool(model.troubles))
        assert model.bundle.release == 1
        assert model.run(make_inputs(1)[0])
        write_pointer(tmp_path, install_model(tmp_path, 3, scale=3.0))
        wait_until(lambda: model.bundle.release == 3)
    collected = LatencyCollector(tmp_path).collect()
    (trouble,) = collected.troubles
    assert trouble.model == "tiny"
    assert trouble.because.startswith("version 1.1.0 keeps serving, the new one failed: ")
    assert f"'model/cpu/model.onnx' has 6 bytes, {size_bytes} were installed" in trouble.because


def test_a_damaged_pointer_leaves_the_model_serving(tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    with open_model("tiny", tmp_path, poll_s=FAST_S) as model:
        pointer_path(tmp_path, "tiny").write_bytes(b"{")
        wait_until(lambda: bool(model.troubles))
        assert "the pointer to the active model is damaged" in model.troubles[0]
        pointer_path(tmp_path, "tiny").unlink()
        assert model.run(make_inputs(1)[0])


def test_a_commit_of_the_same_model_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = install_model(tmp_path, 1, scale=1.0)
    write_pointer(tmp_path, pointer)
    with open_model("tiny", tmp_path, poll_s=FAST_S) as model:
        opened: list[Path] = []
        monkeypatch.setattr(
            slot_opening, "open_session", lambda folder, *_, **__: opened.append(folder)
        )
        choice = Choice(
            wanted="", chosen="cpu", provider=CPU, because="committed", is_fallback=False
        )
        write_pointer(
            tmp_path,
            ActivePointer(bundle=pointer.bundle, choice=choice, since=1.0, committed=True),
        )
        wait_until(lambda: model.choice.because == "committed")
        assert opened == []


def test_every_inference_is_spooled_by_the_model_that_ran_it(tmp_path: Path) -> None:
    feeds = make_inputs(1)[0]
    one, two = (install_model(tmp_path, release, scale=release) for release in (1, 2))
    write_pointer(tmp_path, one)
    with open_model("tiny", tmp_path, poll_s=FAST_S) as model:
        for _ in range(5):
            model.run(feeds)
        write_pointer(tmp_path, two)
        wait_until(lambda: model.bundle.release == 2)
        for _ in range(3):
            model.run(feeds)
        with pytest.raises(ValueError, match="given: none"):
            model.run({})
    collected = LatencyCollector(tmp_path).collect()
    assert {(it.digest, it.latency.count, it.failures) for it in collected.telemetry} == {
        (one.digest, 5, 0),
        (two.digest, 3, 0),
    }
    assert all(it.provider == CPU and it.variant == "cpu" for it in collected.telemetry)


def test_feeds_that_fitted_an_earlier_release_count_as_failures_of_each_later_one(
    tmp_path: Path,
) -> None:
    feeds = make_inputs(1)[0]
    one = install_model(tmp_path, 1, scale=1.0)
    larger = [install_model(tmp_path, release, scale=release, side=16) for release in (2, 3)]
    write_pointer(tmp_path, one)
    with open_model("tiny", tmp_path, poll_s=FAST_S) as model:
        model.run(feeds)

        def is_serving(digest: str) -> bool:
            return model.bundle.digest == digest

        for pointer in larger:
            write_pointer(tmp_path, pointer)
            wait_until(partial(is_serving, pointer.digest))
            with pytest.raises(ValueError, match="expected"):
                model.run(feeds)
            with pytest.raises(ValueError, match="given: none"):
                model.run({})  # Fits no release: a mistake of the application.
    collected = LatencyCollector(tmp_path).collect()
    failures = {it.digest: it.failures for it in collected.telemetry if it.failures}
    assert failures == {pointer.digest: 1 for pointer in larger}


def test_an_inference_that_the_provider_fails_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    with open_model("tiny", tmp_path) as model:

        def fail(feeds: object) -> None:
            raise DeviceError("the provider failed")

        monkeypatch.setattr(model._serving.session, "run", fail)
        with pytest.raises(DeviceError, match="the provider failed"):
            model.run(make_inputs(1)[0])
        # A soak hears of it while the application goes on.
        wait_until(lambda: any((tmp_path / spool.DISK_FOLDER).glob("*.json")))
    (telemetry,) = LatencyCollector(tmp_path).collect().telemetry
    assert (telemetry.failures, telemetry.latency.count) == (1, 0)


def test_a_spool_that_cannot_be_written_does_not_disturb_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(record, "write_spooled", refuse)
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    with open_model("tiny", tmp_path) as model:
        assert model.run(make_inputs(1)[0])
    assert "latencies cannot be handed to the agent" in caplog.text


def shared_counts(folder: Path) -> set[Path]:
    """Return the files of counts below a folder that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # The folder's own.
            found.add(descriptor.readlink())
    return {path for path in found if path.suffix == spool.COUNTS and folder in path.parents}


def test_threads_run_through_twenty_swaps_without_a_failed_inference(tmp_path: Path) -> None:
    assert spool.open_spool(tmp_path, str(tmp_path / "run")) == ""
    pointers = [install_model(tmp_path, 1, scale=1.0), install_model(tmp_path, 2, scale=2.0)]
    write_pointer(tmp_path, pointers[0])
    feeds = make_inputs(1)[0]
    stop = threading.Event()
    failures: list[str] = []
    seen: set[float] = set()
    counts = [0] * 3

    with open_model("tiny", tmp_path, threads=1, poll_s=FAST_S) as model:
        base = float(model.run(feeds)["y"][0, 0])

        def work(number: int) -> None:
            while not stop.is_set():
                try:
                    seen.add(round(float(model.run(feeds)["y"][0, 0]) / base, 3))
                except (DeviceError, ValueError) as error:
                    failures.append(str(error))
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for flip in range(1, 21):
            pointer = pointers[flip % 2]
            write_pointer(tmp_path, pointer)
            wait_until(lambda: model.bundle.digest == pointer.digest)  # noqa: B023
        stop.set()
        for thread in threads:
            thread.join()
        wait_until(
            lambda: len(shared_counts(tmp_path)) == 1, "files of replaced releases are closed"
        )
    assert failures == []
    assert seen == {1.0, 2.0}
    assert model.troubles == ()
    telemetry = LatencyCollector(tmp_path).collect().telemetry
    assert sum(one.latency.count for one in telemetry) == sum(counts) + 1


def test_nan_and_infinity_are_counted_where_the_golden_outputs_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=2.0))
    feeds = make_inputs(1)[0]
    with open_model("tiny", tmp_path, threads=1) as model:
        model.run(feeds)
        for value in (np.nan, np.inf, -np.inf, 3e38, -3e38):
            model.run({"x": np.full_like(feeds["x"], value)})
        with pytest.raises(ValueError, match="inputs are"):
            model.run({})

        def crash(_feeds: object) -> None:
            raise MemoryError

        monkeypatch.setattr(model._serving.session, "run", crash)
        with pytest.raises(MemoryError):
            model.run(feeds)
    (window,) = LatencyCollector(tmp_path).collect().telemetry
    assert (window.latency.count, window.failures, window.not_finite) == (6, 1, 2)
    assert (window.bad_inputs, window.bad_input) == (3, "x")


def test_memory_that_a_replaced_release_takes_does_not_count_as_that_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SPOOL_S", 0.01)
    feeds = make_inputs(1)[0]
    one, two = (install_model(tmp_path, release, scale=release) for release in (1, 2))
    collector = LatencyCollector(tmp_path, is_running=lambda _: True)
    told: dict[str, list[int | None]] = {one.digest: [], two.digest: []}

    def is_told(digest: str) -> bool:
        model.run(feeds)
        for window in collector.collect().telemetry:
            told[window.digest].append(window.memory_bytes)
        return bool(told[digest])

    write_pointer(tmp_path, one)
    with open_model("tiny", tmp_path, poll_s=FAST_S) as model:
        wait_until(lambda: is_told(one.digest))
        assert all(told[one.digest])
        with model.session() as session:
            session.run(feeds)
            write_pointer(tmp_path, two)
            wait_until(lambda: model.bundle.release == 2)
            session.run(feeds)
            wait_until(lambda: is_told(two.digest) and told[one.digest][-1] is None)
            assert told[two.digest] == [None] * len(told[two.digest]), "both are in memory"
        wait_until(lambda: is_told(two.digest) and told[two.digest][-1] is not None)
