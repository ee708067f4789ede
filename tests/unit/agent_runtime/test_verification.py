"""Golden samples run again: planted faults are found bit for bit, and sound providers pass."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import numpy_helper

from edgepack.agent.config import ProbeConfig
from edgepack.agent.runtime.first_answers import FirstAnswersStore
from edgepack.agent.runtime.opening import open_session
from edgepack.agent.runtime.own_answers import RUNS, distance, repeat, why_other
from edgepack.agent.runtime.sessions import Session
from edgepack.agent.runtime.verdicts import probe_cache_key
from edgepack.agent.runtime.verification import (
    FirstAnswers,
    VerificationRequest,
    Verified,
    verify_in_child,
)
from edgepack.agent.runtime.verifying import verify_here
from edgepack.agent.serving.model import Model, open_model
from edgepack.agent.state.holders import Held, HolderWatch
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.state.verification_settings import (
    VerificationSettings,
    read_verification,
    write_verification,
)
from edgepack.bundle.manifest import MANIFEST_FILE, Variant, decode_manifest
from tests.graphs import graph_model
from tests.simulators.children import child
from tests.simulators.manifests import make_variant
from tests.simulators.pointers import write_pointer
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.examples import (
    conv_model,
    install_model,
    make_facts,
    make_inputs,
    save_variant,
)

FAST = VerificationSettings(interval_s=1e-3, share=0.05)


def int8_model() -> onnx.ModelProto:
    """Return a product with int8 weights: x float32 (1, 16) -> y (1, 8)."""
    rng = np.random.default_rng(1)
    values: dict[str, np.ndarray] = {
        "w": rng.integers(-127, 128, (16, 8)).astype(np.int8),
        "scale": np.array(0.01, np.float32),
    }
    return graph_model(
        "(float[1,16] x) => (float[1,8] y) { [dq] f = DequantizeLinear(w, scale) "
        "[mm] y = MatMul(x, f) }",
        values,
    )


def flip(model: onnx.ModelProto, name: str, index: int, bit: int) -> onnx.ModelProto:
    """Flip a bit of a value of an initializer."""
    (tensor,) = (one for one in model.graph.initializer if one.name == name)
    values = numpy_helper.to_array(tensor).copy()
    bits = values.reshape(-1).view(np.dtype(f"u{values.itemsize}"))
    bits[index] ^= bits.dtype.type(1 << bit)
    tensor.CopyFrom(numpy_helper.from_array(values, name))
    return model


def opened(folder: Path, model: onnx.ModelProto, *, threads: int = 1) -> Session:
    variant = make_variant()
    save_variant(folder, variant)
    onnx.save(model, folder / variant.folder / variant.model_file)
    return open_session(folder, variant, threads=threads)


def first_of(session: Session, feeds: dict[str, np.ndarray]) -> FirstAnswers:
    found = repeat(lambda: session.run(feeds))
    return FirstAnswers(answers=(found.answer,), worst=found.worst)


@pytest.mark.parametrize("threads", [1, 2])
def test_sound_provider_repeats_every_bit_over_sessions_and_threads(
    tmp_path: Path, threads: int
) -> None:
    (feeds,) = make_inputs(1)
    first = first_of(opened(tmp_path / "a", conv_model()), feeds)
    assert first.worst == 0.0
    again = opened(tmp_path / "b", conv_model(), threads=threads)
    assert why_other(first, 0, again.run(feeds)) == ""


@pytest.mark.parametrize(
    ("make", "name", "bits", "least"),
    [
        (conv_model, "w", (31, 30, 29, 24, 22), 1.0),  # sign, exponent, top of the mantissa
        (conv_model, "w", (8,), 0.5),  # a low bit of the mantissa may be rounded away
        (int8_model, "w", (0, 3, 7), 1.0),
        (int8_model, "scale", (30, 24, 20), 1.0),
    ],
)
def test_flipped_bit_of_a_weight_gives_other_bits(
    tmp_path: Path,
    make: Callable[[], onnx.ModelProto],
    name: str,
    bits: tuple[int, ...],
    least: float,
) -> None:
    rng = np.random.default_rng(0)
    shape = (1, 3, 8, 8) if make is conv_model else (1, 16)
    feeds = {"x": (0.1 + np.abs(rng.standard_normal(shape))).astype(np.float32)}
    first = first_of(opened(tmp_path, make()), feeds)
    size = next(
        numpy_helper.to_array(one).size for one in make().graph.initializer if one.name == name
    )
    found = [
        why_other(first, 0, opened(tmp_path, flip(make(), name, index, bit)).run(feeds)) != ""
        for bit in bits
        for index in rng.integers(0, size, 1 if size == 1 else 4).tolist()
    ]
    assert sum(found) >= least * len(found), found


def test_nan_is_as_far_as_can_be(tmp_path: Path) -> None:
    (feeds,) = make_inputs(1)
    first = first_of(opened(tmp_path, conv_model()), feeds)
    broken = {"y": np.full((1, 4), np.nan, np.float32)}
    assert distance(first.answers[0], broken) > 1e6
    assert "other bits than at first" in why_other(first, 0, broken)


def test_provider_that_does_not_repeat_bits_is_judged_by_its_own_spread() -> None:
    rng = np.random.default_rng(2)
    right = rng.standard_normal((1, 500)).astype(np.float32)
    ran = 0

    def run(factor: float = 1.0) -> dict[str, np.ndarray]:
        nonlocal ran
        ran += 1
        noise = 1 + 1e-4 * rng.standard_normal(right.shape)
        return {"y": (factor * right * noise).astype(np.float32)}

    found = repeat(run)
    first = FirstAnswers(answers=(found.answer,), worst=found.worst)
    assert ran == RUNS + 1
    assert 0 < first.worst < 1e-3
    assert [why_other(first, 0, run()) for _ in range(100)] == [""] * 100
    assert "own runs at most" in why_other(first, 0, run(factor=1.01))
    assert why_other(first, 0, {"y": right[:, :3]}) != ""
    restored = msgspec.json.decode(msgspec.json.encode(first), type=FirstAnswers)
    assert restored == first


@pytest.fixture
def installed(tmp_path: Path) -> tuple[Path, ActivePointer]:
    pointer = replace(install_model(tmp_path, 1, scale=1.0), committed=True)
    write_pointer(tmp_path, pointer)
    return tmp_path, pointer


def plant(state_dir: Path, pointer: ActivePointer, bit: int = 30) -> Variant:
    """Flip a bit of a weight in the slot's file."""
    folder = slot_folder(state_dir, pointer.digest)
    manifest = decode_manifest((folder / MANIFEST_FILE).read_bytes())
    variant = manifest.variant(pointer.choice.chosen)
    path = folder / variant.folder / variant.model_file
    onnx.save(flip(conv_model(), "w", 5, bit), path)
    return variant


def faulty_session(tmp_path: Path) -> Session:
    return opened(tmp_path / "faulty", flip(conv_model(), "w", 5, 30))


def held(state_dir: Path) -> Held:
    (one,) = HolderWatch(state_dir).look().held
    return one


def serve(state_dir: Path) -> Model:
    assert write_verification(state_dir, FAST) == ""
    return open_model("tiny", state_dir, threads=1, poll_s=0.005)


def test_application_opens_a_release_again_whose_memory_changed(
    installed: tuple[Path, ActivePointer],
) -> None:
    state_dir, _ = installed
    (feeds,) = make_inputs(1)
    with serve(state_dir) as model:
        right = model.run(feeds)["y"]
        wait_until(lambda: held(state_dir).checked >= 2)
        assert (held(state_dir).other, held(state_dir).wrong) == (0, "")
        model._serving.session = faulty_session(state_dir)
        assert not np.array_equal(model.run(feeds)["y"], right)
        wait_until(lambda: held(state_dir).other > 0)
        wait_until(lambda: np.array_equal(model.run(feeds)["y"], right))
        checked = held(state_dir).checked
        wait_until(lambda: held(state_dir).checked > checked + 1)
        assert (held(state_dir).other, held(state_dir).wrong) == (1, "")
        assert "golden sample 1 of 1 gives other bits than at first" in held(state_dir).healed
        assert held(state_dir).healed_at > 0


def test_application_reports_a_fault_that_stays(installed: tuple[Path, ActivePointer]) -> None:
    state_dir, pointer = installed
    with serve(state_dir) as model:
        wait_until(lambda: held(state_dir).checked >= 1)
        plant(state_dir, pointer)
        model._serving.session = faulty_session(state_dir)
        wait_until(lambda: held(state_dir).wrong != "")
        told = held(state_dir).wrong
        assert "golden sample 1 of 1 gives other bits than at first" in told
        assert "cannot be opened again" in told


def test_verifications_can_be_switched_off(installed: tuple[Path, ActivePointer]) -> None:
    state_dir, _ = installed
    assert read_verification(state_dir) == VerificationSettings()
    off = VerificationSettings(interval_s=0.0)
    assert write_verification(state_dir, off) == ""
    with open_model("tiny", state_dir, threads=1) as model:
        verifier = model._follower._verifier
        assert verifier.turn(model._serving.session) is None
        assert verifier._first.answers == ()
    (state_dir / "verification.json").write_text("{")
    assert read_verification(state_dir) == VerificationSettings()
    assert write_verification(state_dir / "nowhere", off) != ""


def test_agent_finds_a_changed_file_in_a_child_and_forgets_nothing_at_a_restart(
    installed: tuple[Path, ActivePointer],
) -> None:
    state_dir, pointer = installed
    folder = slot_folder(state_dir, pointer.digest)
    manifest = decode_manifest((folder / MANIFEST_FILE).read_bytes())
    variant = manifest.variant(pointer.choice.chosen)
    request = VerificationRequest(bundle_folder=str(folder), variant=variant, timeout_s=400)
    key = probe_cache_key(pointer.digest, variant, make_facts(), threads=0)

    def verify(first: FirstAnswers | None) -> Verified:
        return verify_here(replace(request, first=first))

    store = FirstAnswersStore(state_dir)
    made = store.verify(key, verify)
    assert (made.because, made.trouble, made.samples) == ("", "", 1)
    assert made.first is not None
    assert store.verify(key, verify) == Verified(samples=1)
    plant(state_dir, pointer)
    found = FirstAnswersStore(state_dir).verify(key, verify)
    assert "golden sample 1 of 1 gives other bits" in found.because
    in_child = verify_in_child(replace(request, first=made.first), ProbeConfig())
    assert in_child.because == found.because
    assert in_child.taken_s > 0
    other_driver = probe_cache_key(
        pointer.digest, variant, make_facts(drivers={"npu": "2"}), threads=0
    )
    wrong = store.verify(other_driver, verify)
    assert wrong.because.startswith("golden samples are wrong: ")
    assert wrong.first is None
    plant(state_dir, pointer, bit=16)  # Within the tolerances: only the first answers tell.
    assert "other bits" in store.verify(key, verify).because


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        ("import os; os.abort()", "crashed with SIGABRT"),
        ("print('[')", "its answer cannot be read"),
    ],
)
def test_child_that_cannot_run_tells_nothing_of_the_answers(code: str, trouble: str) -> None:
    request = VerificationRequest(bundle_folder="", variant=make_variant(), timeout_s=400)
    found = verify_in_child(request, ProbeConfig(), command=child(code))
    assert (found.because, found.first) == ("", None)
    assert trouble in found.trouble
    assert verify_here(request).trouble != ""
