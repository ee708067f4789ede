"""Shadow inferences: the previous release computes some, too, without delay for the application."""

import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.agent.runtime import shadow as shadow_child
from edgepack.agent.runtime.sessions import SessionTensor, Tensor
from edgepack.agent.runtime.slot_opening import open_slot
from edgepack.agent.serving import shadow as serving_shadow
from edgepack.agent.serving import shadow_process
from edgepack.agent.serving.model import Model, open_model
from edgepack.agent.state.decryption_key import write_key_file
from edgepack.agent.state.pointer import ActivePointer, Shadow
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.collector import LatencyCollector
from edgepack.agent.telemetry.shadowed import MAX_REASON, Shadowed
from edgepack.agent.telemetry.spool import Spooled, write_spooled
from edgepack.bundle.golden import is_same_answer
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from edgepack.bundle.metadata import GoldenAgreement, GoldenTolerance
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.text.head import TextHead
from edgepack.wire.histogram import LatencyRecorder
from tests.simulators.children import child, has_ended
from tests.simulators.manifests import CPU
from tests.simulators.pointers import write_pointer
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.examples import install_model, make_inputs

FAST_S = 0.005
HANGS = child("import time; time.sleep(600)")
OPENS = "print('{}', flush=True)"
OPENS_AND_HANGS = child(f"{OPENS}; import time; time.sleep(600)")


def soaking(pointer: ActivePointer, before: ActivePointer, **changes: object) -> ActivePointer:
    """Return a pointer to a soaking release; as many of its inferences as possible are compared."""
    shadow = Shadow(
        bundle=before.bundle,
        variant=before.choice.chosen,
        share=1.0,
        busy_share=1.0,
        memory_bytes=2**40,
    )
    return replace(pointer, shadow=replace(shadow, **changes))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, ...]], None]:
    """Set the command in place of the child's."""

    def use(words: tuple[str, ...]) -> None:
        monkeypatch.setattr(shadow_process, "CHILD", words)

    return use


def told(model: Model) -> Shadowed:
    return model._serving.record.shadowed.snapshot()


def pid(model: Model) -> int | None:
    runner = model._serving.shadow
    process = runner and runner._process._child
    return process.pid if process else None


def run_until(model: Model, is_so: Callable[[], bool]) -> None:
    """Run inferences, like an application."""
    feeds = make_inputs(1)[0]

    def is_done() -> bool:
        model.run(feeds)
        return is_so()

    wait_until(is_done)


@contextmanager
def serving(
    state_dir: Path, *, scale: float = 1.0, side: int = 8, **changes: object
) -> Iterator[Model]:
    """Return a model with a soaking second release; the first release is unchanged."""
    before = install_model(state_dir, 1, scale=scale, side=side)
    write_pointer(state_dir, soaking(install_model(state_dir, 2, scale=1.0), before, **changes))
    with open_model("tiny", state_dir, threads=1, poll_s=FAST_S) as model:
        yield model


@pytest.mark.parametrize(("scale", "agreed"), [(1.0, 1.0), (3.0, 0.0)])
def test_the_release_before_computes_inferences_too_and_what_came_of_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float, agreed: float
) -> None:
    nan = {"x": np.full_like(make_inputs(1)[0]["x"], np.nan)}
    with serving(tmp_path, scale=scale) as model:
        run_until(model, lambda: told(model).count >= 5)
        offered: list[object] = []
        monkeypatch.setattr(model._serving.shadow, "offer", lambda feeds, *_: offered.append(feeds))
        model.run(nan)
        assert offered == [], "NaN of an input is no failure of either release"
        model.run(make_inputs(1)[0])
        assert len(offered) == 1
    (window,) = LatencyCollector(tmp_path).collect().telemetry
    assert window.shadow_count >= 5
    assert window.shadow_agreed == agreed * window.shadow_count
    assert window.digest == model.bundle.digest


def test_without_being_asked_nothing_runs(tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    threads = threading.active_count()
    with open_model("tiny", tmp_path, threads=1) as model:
        model.run(make_inputs(1)[0])
        assert model._serving.shadow is None
        assert threading.active_count() == threads + 1, "the thread that watches the pointer"
    (window,) = LatencyCollector(tmp_path).collect().telemetry
    assert (window.shadow_count, told(model)) == (0, Shadowed())


def test_no_process_is_started_before_an_inference_is_its_turn(tmp_path: Path) -> None:
    with serving(tmp_path, share=1e-12) as model:
        for _ in range(50):
            model.run(make_inputs(1)[0])
        assert pid(model) is None
        assert told(model) == Shadowed()


@pytest.mark.parametrize("words", [HANGS, OPENS_AND_HANGS])
def test_a_release_before_that_hangs_delays_no_inference_and_is_ended(
    tmp_path: Path,
    command: Callable[[tuple[str, ...]], None],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    command(words)
    with serving(tmp_path) as model:
        run_until(model, lambda: pid(model) is not None)
        running = pid(model)
        for _ in range(200):
            model.run(make_inputs(1)[0])
        assert pid(model) == running, "it hangs still"
        assert told(model).dropped >= 200, "and what came meanwhile was left out"
        runner = model._serving.shadow
        assert runner is not None

        def is_ended() -> bool:
            runner._process._deadline = 0.0
            return told(model).because != ""

        wait_until(is_ended)
        assert told(model).because == "1.1.0: it did not answer in time"
        assert running is not None
        assert has_ended(running)
        model.run(make_inputs(1)[0])
    assert told(model).count == 0


def test_the_time_that_it_may_take_is_bounded(
    tmp_path: Path, command: Callable[[tuple[str, ...]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_process, "OPEN_S", 0.05)
    command(HANGS)
    with serving(tmp_path) as model:
        run_until(model, lambda: told(model).because != "")
        assert told(model).because == "1.1.0: it did not answer in time"


@pytest.mark.parametrize(
    ("code", "because"),
    [
        ("import os; os.abort()", "its process crashed with SIGABRT"),
        ("raise SystemExit('no such thing')", "its process ended with exit code 1: no such thing"),
        (f"{OPENS}; raise SystemExit(3)", "its process ended with exit code 3"),
        ("print('[' * 100)", "its process ended with exit code 0"),
        ("""print('{"because": "it is encrypted"}')""", "it is encrypted"),
    ],
)
def test_a_release_before_that_fails_is_no_evidence_with_its_reason_and_nothing_else(
    tmp_path: Path, command: Callable[[tuple[str, ...]], None], code: str, because: str
) -> None:
    command(child(code))
    with serving(tmp_path) as model:
        run_until(model, lambda: told(model).because != "")
        assert told(model).because == f"1.1.0: {because}"
        assert model.troubles == (), "a soak does not fail because of it"
    collected = LatencyCollector(tmp_path).collect()
    assert collected.shadowed[model.bundle.digest].because == f"1.1.0: {because}"
    assert collected.telemetry[0].shadow_count == 0


def test_a_process_that_takes_too_much_memory_is_ended_until_the_next_order(tmp_path: Path) -> None:
    with serving(tmp_path, memory_bytes=1_000_000) as model:
        run_until(model, lambda: told(model).because != "")
        assert told(model).because == "1.1.0: it needs more than 1 MB of memory"
        pointer = model._serving.pointer
        assert pointer.shadow is not None
        allowed = replace(pointer.shadow, memory_bytes=2**40, sequence=7)
        write_pointer(tmp_path, replace(pointer, shadow=allowed))
        run_until(model, lambda: told(model).count > 0)
        assert (told(model).because, told(model).sequence) == ("", 7), "of the newest order"


def test_a_release_before_whose_files_changed_is_not_run(tmp_path: Path) -> None:
    with serving(tmp_path) as model:
        shadow = model._serving.pointer.shadow
        assert shadow is not None
        path = tmp_path / "slots" / shadow.bundle.digest / "model" / "cpu" / "model.onnx"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        run_until(model, lambda: told(model).because != "")
        assert "model/cpu/model.onnx" in told(model).because


def test_releases_with_other_inputs_are_not_compared(tmp_path: Path) -> None:
    with serving(tmp_path, side=16) as model:
        run_until(model, lambda: told(model).because != "")
        assert told(model) == replace(
            told(model),
            count=0,
            because="1.1.0: it has other inputs than the serving release: "
            "x float32 [1, 3, 16, 16]; the serving release has x float32 [1, 3, 8, 8]",
        )


@pytest.mark.parametrize("has_key", [True, False])
def test_an_encrypted_release_before_is_opened_with_the_devices_key_or_not_at_all(
    tmp_path: Path, has_key: bool
) -> None:
    key_file = write_key_pair(generate_key(), tmp_path / "device")[0]
    recipient = load_private_key(key_file).public_key()
    before = install_model(tmp_path, 1, scale=1.0, recipient=recipient)
    if has_key:
        write_key_file(tmp_path, str(key_file))
    write_pointer(tmp_path, soaking(install_model(tmp_path, 2, scale=1.0), before))
    with open_model("tiny", tmp_path, threads=1, poll_s=FAST_S) as model:
        run_until(model, lambda: told(model).count > 0 or told(model).because != "")
        assert (told(model).count > 0) == has_key
        assert ("this device has no key" in told(model).because) != has_key


@pytest.mark.parametrize("is_back", [False, True])
def test_its_process_and_thread_go_with_the_soak(tmp_path: Path, is_back: bool) -> None:
    with serving(tmp_path) as model:
        run_until(model, lambda: told(model).count > 0)
        running, serves = pid(model), model._serving.pointer
        assert running is not None
        assert serves.shadow is not None
        back = install_model(tmp_path, 1, scale=1.0)
        write_pointer(tmp_path, back if is_back else replace(serves, committed=True, shadow=None))
        wait_until(lambda: model._serving.shadow is None and model._serving.pointer != serves)
        assert has_ended(running)
        wait_until(lambda: not any("shadow" in one.name for one in threading.enumerate()))
        model.run(make_inputs(1)[0])
        assert pid(model) is None


def test_an_application_that_ends_takes_it_along(tmp_path: Path) -> None:
    with serving(tmp_path) as model:
        run_until(model, lambda: told(model).count > 0)
        running = pid(model)
    assert running is not None
    assert has_ended(running)


def test_one_process_of_a_device_does_it_and_another_one_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_shadow, "LOCKED_S", 0.01)
    with serving(tmp_path) as first:
        run_until(first, lambda: told(first).count > 0)
        with open_model("tiny", tmp_path, threads=1, poll_s=FAST_S) as second:
            run_until(second, lambda: told(second).dropped > 20)
            assert (pid(second), told(second).count) == (None, 0)
            first.close()
            run_until(second, lambda: told(second).count > 0)


def test_it_runs_for_no_more_than_its_share_of_the_time(tmp_path: Path) -> None:
    """A process that took a moment rests a thousand times as long."""
    with serving(tmp_path, busy_share=1e-6) as model:
        run_until(model, lambda: told(model).count == 1)
        for _ in range(100):
            model.run(make_inputs(1)[0])
        assert told(model).count == 1
        assert told(model).dropped >= 100


def tensor(name: str, *shape: int | str, dtype: str = "float32") -> SessionTensor:
    return SessionTensor(name=name, dtype=dtype, shape=shape)


@pytest.mark.parametrize(
    ("before", "is_alike"),
    [
        ([tensor("y", 1, 4)], True),
        ([tensor("y", "batch", 4)], True),
        ([tensor("y", 1, 4), tensor("more", 7)], False),
        ([tensor("y", 1, 5)], False),
        ([tensor("y", 4)], False),
        ([tensor("y", 1, 4, dtype="int64")], False),
        ([], False),
    ],
)
def test_tensors_that_are_compared_must_be_alike(
    before: list[SessionTensor], is_alike: bool
) -> None:
    if is_alike:
        shadow_child.check_alike("outputs", [tensor("y", 1, 4)], before)
    else:
        with pytest.raises(DeviceError, match="has other outputs"):
            shadow_child.check_alike("outputs", [tensor("y", 1, 4)], before)


def request_for(
    state_dir: Path,
    pointer: ActivePointer,
    tolerances: dict[str, GoldenTolerance],
    *agreements: GoldenAgreement,
) -> shadow_child.ShadowRequest:
    """Return the request to compute beside a release of `conv_model`."""
    return shadow_child.ShadowRequest(
        state_dir=str(state_dir),
        digest=pointer.digest,
        variant="cpu",
        inputs=(tensor("x", 1, 3, 8, 8),),
        outputs=(tensor("y", 1, 4),),
        tolerances=tolerances,
        agreements=agreements,
    )


@pytest.mark.parametrize("limits", [{}, {"watched": GoldenTolerance(cosine_min=1, nrmse_max=0)}])
def test_a_release_of_which_nothing_is_judged_is_no_evidence(
    tmp_path: Path, limits: dict[str, GoldenTolerance]
) -> None:
    pointer = install_model(tmp_path, 1, scale=1.0)
    request = request_for(tmp_path, pointer, limits)
    with pytest.raises(DeviceError, match="no output of this release has a tolerance"):
        shadow_child.serve(request, io.BytesIO(), io.BytesIO())


@pytest.mark.parametrize("task", ["values", "unknown"])
def test_values_are_the_same_by_their_spread_and_not_by_their_level(
    tmp_path: Path, task: str
) -> None:
    pointer = install_model(tmp_path, 1, scale=1.0, samples=8)
    part = TaskOutputs(task=task, outputs=("y",), source="declared")
    limits = {"y": GoldenTolerance(cosine_min=0.9, nrmse_max=0.5)}
    agreement = GoldenAgreement(part=part, keep=0.9)
    request = request_for(tmp_path, pointer, limits, agreement)
    session = open_slot(tmp_path, pointer.digest, "cpu", threads=1).session
    inputs = make_inputs(24)[8:]
    right = [np.asarray(session.run(feeds)["y"], np.float32) for feeds in inputs]
    spread = np.std(right, axis=0)
    near = [value + 0.1 * spread for value in right]
    for given, least, most in ((near, 16, 16), (right[1:] + right[:1], 0, 5)):
        stream, answers = io.BytesIO(), io.BytesIO()
        for feeds, value in zip(inputs, given, strict=True):
            shadow_child.write_inference(stream, feeds, {"y": value.astype(np.float32)})
        stream.seek(0)
        shadow_child.serve(request, stream, answers)
        told = [
            decode_json(line, shadow_child.ShadowAnswer) for line in answers.getvalue().splitlines()
        ]
        assert least <= sum(answer.agreed for answer in told[1:]) <= most


APPLICATION = """
import sys, numpy as np
from edgepack.agent import open_model
model = open_model("tiny", sys.argv[1], threads=1)
while not model._serving.record.shadowed.snapshot().count:
    model.run({"x": np.zeros((1, 3, 8, 8), np.float32)})
print(model._serving.shadow._process._child.pid, flush=True)
sys.stdin.read()
"""


def test_an_application_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    before = install_model(tmp_path, 1, scale=1.0)
    write_pointer(tmp_path, soaking(install_model(tmp_path, 2, scale=1.0), before))
    with subprocess.Popen(
        [sys.executable, "-c", APPLICATION, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as application:
        assert application.stdout is not None
        running = int(application.stdout.readline())
        application.kill()
    assert has_ended(running)


def test_tensors_of_every_kind_reach_the_child_as_they_are() -> None:
    feeds: Mapping[str, Tensor] = {
        "half": np.arange(6, dtype=np.float16).reshape(2, 3).T,
        "flag": np.array([True, False]),
        "one": np.array(7, np.int64),
        "none": np.zeros((0, 4), np.uint8),
    }
    stream = io.BytesIO()
    shadow_child.write_inference(stream, feeds, {"y": np.ones(2, np.float32)})
    stream.seek(0)
    header = shadow_child.read_header(stream)
    assert header is not None
    got = shadow_child.read_tensors(stream, header.feeds)
    for name, value in feeds.items():
        assert got[name].dtype == value.dtype
        assert np.array_equal(got[name], value)
    assert shadow_child.read_tensors(stream, header.outputs)["y"].tolist() == [1, 1]
    assert shadow_child.read_header(stream) is None


def _decides(output: str = "y") -> GoldenAgreement:
    part = TaskOutputs(task="classification", outputs=(output,), source="values")
    return GoldenAgreement(part=part, keep=0.9)


def test_decisions_count_not_how_sure_a_release_is_of_them() -> None:
    near = {"y": GoldenTolerance(cosine_min=0.99, nrmse_max=0.05)}
    before, surer = {"y": np.array([[1.0, 4.0, 0.0]])}, {"y": np.array([[0.0, 9.0, 0.0]])}
    other = {"y": np.array([[4.0, 1.0, 0.0]])}
    assert is_same_answer(before, surer, near, (_decides(),))
    assert not is_same_answer(before, other, near, (_decides(),))
    assert not is_same_answer(before, surer, near)
    assert is_same_answer(before, before, near)


@pytest.mark.parametrize("ignores_spaces", [False, True])
def test_a_line_that_loses_its_space_differs_unless_spaces_do_not_count(
    ignores_spaces: bool,
) -> None:
    head = TextHead(output="y", blank=0, spaces=(4,), ignores_spaces=ignores_spaces)
    agreements = (GoldenAgreement(part=head.part, keep=0.9),)

    def line(kinds: Sequence[int], sure: float = 0.99) -> dict[str, Tensor]:
        rows = np.full((1, len(kinds), 5), (1.0 - sure) / 4, np.float32)
        rows[0, np.arange(len(kinds)), kinds] = sure
        return {"y": rows}

    before, joined = line([1, 2, 4, 3, 2, 1]), line([1, 2, 0, 3, 2, 1])
    assert is_same_answer(before, joined, {}, agreements) == ignores_spaces
    assert not is_same_answer(before, line([1, 2, 4, 3, 3, 1]), {}, agreements), "another character"
    unsure = before | {"y": before["y"].copy()}
    unsure["y"][0, 2] = [0.49, 0.0, 0.0, 0.0, 0.51]
    assert is_same_answer(unsure, joined, {}, agreements), "it was a near tie"
    long = [1, 2, 3, 0] * 12
    other = [*long[:-2], 1, 0]
    assert not is_same_answer(line(long, 0.95), line(other), {}, agreements), "its share is .08"


def test_a_single_decision_agrees_if_it_is_the_same_or_was_a_near_tie() -> None:
    before: dict[str, Tensor] = {"y": np.array([[0.1, 0.9]])}

    def agrees(now: dict[str, Tensor], earlier: dict[str, Tensor] = before) -> bool:
        return is_same_answer(earlier, now, {}, (_decides(),))

    assert agrees({"y": np.array([[0.4, 0.6]])})
    assert not agrees({"y": np.array([[0.6, 0.4]])})
    assert agrees({"y": np.array([[0.6, 0.4]])}, {"y": np.array([[0.45, 0.55]])})
    assert not agrees({"y": np.array([[np.nan, 0.9]])})
    assert not agrees({})


def test_half_of_the_rows_of_a_sequence_may_differ() -> None:
    before: dict[str, Tensor] = {"y": np.eye(4)[None]}
    two, three = np.eye(4)[None].copy(), np.eye(4)[None].copy()
    two[0, :2] = np.eye(4)[3]
    three[0, :3] = np.eye(4)[3]
    assert is_same_answer(before, {"y": two}, {}, (_decides(),))
    assert not is_same_answer(before, {"y": three}, {}, (_decides(),))


def test_a_decision_and_a_value_must_both_be_the_same() -> None:
    limits = {
        "decides": GoldenTolerance(cosine_min=0.9, nrmse_max=0.1),
        "value": GoldenTolerance(cosine_min=0.9, nrmse_max=0.1),
    }
    tasks = (_decides("decides"),)
    before: dict[str, Tensor] = {"decides": np.array([[0.0, 1.0]]), "value": np.array([1.0])}
    assert is_same_answer(before, before, limits, tasks)
    assert not is_same_answer(before, before | {"value": np.array([2.0])}, limits, tasks)
    assert not is_same_answer(before, before | {"decides": np.array([[1.0, -4.0]])}, limits, tasks)
    assert not is_same_answer(before, before, {})


def test_inferences_that_count_as_independent_are_spaced_in_time(tmp_path: Path) -> None:
    with serving(tmp_path, spacing_s=3600.0) as model:
        run_until(model, lambda: told(model).count >= 5)
        assert (told(model).spaced, told(model).spaced_agreed) == (1, 1)
    with serving(tmp_path, scale=3.0, spacing_s=1e-9) as model:
        run_until(model, lambda: told(model).count >= 5)
        assert (told(model).spaced, told(model).spaced_agreed) == (told(model).count, 0)


def spool(state_dir: Path, shadowed: Shadowed, *, inferences: int = 1, token: str = "a") -> None:
    latency = LatencyRecorder()
    for _ in range(inferences):
        latency.record(1.0)
    write_spooled(
        state_dir,
        Spooled(
            token=token,
            pid=1,
            model="ocr",
            digest="d" * 64,
            variant="cpu",
            provider=CPU,
            since=0.0,
            written_at=10.0 + inferences,
            latency=latency.snapshot(),
            shadowed=shadowed,
        ),
    )


def test_counts_add_up_over_processes_and_windows_and_each_is_told_once(tmp_path: Path) -> None:
    buffer = TelemetryBuffer(tmp_path)
    spool(tmp_path, Shadowed(count=10, agreed=9, dropped=3))
    buffer.collect()
    spool(tmp_path, Shadowed(count=15, agreed=12, dropped=3))
    spool(tmp_path, Shadowed(count=4, agreed=4, because="1.1.0: closed"), token="b")
    found = buffer.collect().shadowed["d" * 64]
    assert found == Shadowed(count=9, agreed=7, dropped=0, because="1.1.0: closed")
    buffer.commit(seals=True)
    (window,) = buffer.journal.stored.windows
    assert (window.shadow_count, window.shadow_agreed) == (19, 16)


@pytest.mark.parametrize(
    "hostile",
    [
        Shadowed(count=1, agreed=2),
        Shadowed(count=-1, agreed=-1),
        Shadowed(dropped=2**60),
        Shadowed(count=1, spaced=2),
        Shadowed(count=3, agreed=1, spaced=3, spaced_agreed=2),
        Shadowed(because="x" * (MAX_REASON + 1)),
    ],
)
def test_counts_that_contradict_themselves_are_dropped(tmp_path: Path, hostile: Shadowed) -> None:
    spool(tmp_path, hostile)
    collected = LatencyCollector(tmp_path, is_running=lambda _pid: True).collect()
    (dropped,) = collected.dropped
    assert "shadow inferences are off" in dropped
    assert collected.telemetry == ()


def test_counts_that_fall_are_dropped(tmp_path: Path) -> None:
    collector = LatencyCollector(tmp_path, is_running=lambda _pid: True)
    spool(tmp_path, Shadowed(count=10, agreed=5))
    collector.collect()
    spool(tmp_path, Shadowed(count=11, agreed=7))
    (dropped,) = collector.collect().dropped
    assert "its counts of shadow inferences went down" in dropped


def test_a_process_that_is_no_python_starts_none(
    tmp_path: Path, command: Callable[[tuple[str, ...]], None]
) -> None:
    command(("/usr/bin/uwsgi", "-m", "edgepack.agent.runtime.shadow"))
    with serving(tmp_path) as model:
        run_until(model, lambda: told(model).because != "")
        assert told(model).because == "1.1.0: '/usr/bin/uwsgi' is not a Python that can be started"
