"""Inputs that a device chooses for a request: encrypted, bounded, without near duplicates."""

import io
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.serving import capture
from edgepack.agent.serving.capture import SampleKeeper
from edgepack.agent.state.captured import (
    CaptureSettings,
    SealedRequest,
    captured_folder,
    dropped_samples,
    forget_samples,
    kept_samples,
    sealed_suffix,
    switch_capture,
)
from edgepack.agent.telemetry import sketches
from edgepack.agent.telemetry.sketches import SketchRecorder
from edgepack.bundle.drift import draw_features, sketch_outputs, sketch_tensor
from edgepack.bundle.keys import PrivateKey, generate_key, load_private_key, write_key_pair
from edgepack.bundle.plain_arrays import read_arrays
from edgepack.bundle.sealed_samples import open_sample, sample_place
from edgepack.errors import BundleError, DeviceError
from edgepack.tasks.arrays import Singles, Tensor
from edgepack.tasks.description import ModelDescription, TaskOutputs
from edgepack.wire.transfers import MAX_SAMPLE_BYTES
from tests.simulators.pointers import write_pointer
from tests.unit.agent_runtime.examples import install_model

PLACE = sample_place("default", "cam-1", "tiny", "r1")
PART = TaskOutputs(task="classification", outputs=("y",), class_names=("cat", "dog"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[PrivateKey, str]:
    """Return the fleet's private key, and its public key as text."""
    private, public = write_key_pair(generate_key(), tmp_path_factory.mktemp("keys") / "samples")
    return load_private_key(private), public.read_text()


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(capture, "OFFER_S", 0.0)
    monkeypatch.setattr(sketches, "SAMPLE_S", 0.0)
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    return tmp_path


def ask(
    state_dir: Path, recipient: str, *of: str, samples: int = 4, max_bytes: int = 10**6
) -> None:
    request = SealedRequest(request="r1", samples=samples, of=of, recipient=recipient, place=PLACE)
    settings = CaptureSettings(samples=0, max_bytes=max_bytes, requests={"tiny": request})
    assert switch_capture(state_dir, settings) == ""


def picture(seed: int, level: float = 0.0) -> Singles:
    noise = np.random.default_rng(seed).standard_normal((1, 3, 8, 8))
    return (noise + level).astype(np.float32)


def scores(confidence: float) -> dict[str, Singles]:
    return {"y": np.array([[confidence, 1 - confidence]], np.float32)}


def recorder() -> SketchRecorder:
    """Return a recorder of a build with pictures around 0 and a confidence of 90 %."""
    inputs = [sketch_tensor(picture(seed)) for seed in range(40)]
    answers = [sketch_outputs(PART, scores(0.85 + 0.1 * (n % 2))) for n in range(40)]
    features = (*draw_features("x", inputs), *draw_features("y", [a for a in answers if a]))
    found = SketchRecorder()
    found.expect(features, ModelDescription(parts=(PART,)))
    return found


def opened(state_dir: Path, key: PrivateKey, reason: str) -> list[Tensor]:
    """Return the kept inputs, the best last."""
    found: list[Tensor] = []
    for kept in kept_samples(state_dir, "tiny", sealed_suffix("r1", reason)):
        plain = open_sample(kept.path.read_bytes(), key, PLACE)
        found.append(read_arrays(io.BytesIO(plain), len(plain))["x"])
    return found


def test_inputs_with_the_least_confidence_are_kept_for_doubt(
    serving: Path, keys: tuple[PrivateKey, str]
) -> None:
    ask(serving, keys[1], "doubt")
    keeper, built = SampleKeeper(serving, "tiny"), recorder()
    for number, confidence in enumerate((0.9, 0.55, 0.97, 0.6, 0.7, 0.99, 0.8, 0.5)):
        keeper.offer({"x": picture(number)}, scores(confidence), built)
    keeper.write()
    found = opened(serving, keys[0], "doubt")
    want = [picture(number) for number in (4, 3, 1, 7)]
    assert all(np.array_equal(one, other) for one, other in zip(found, want, strict=True))
    for path in captured_folder(serving).glob("*.sealed"):
        assert picture(7).tobytes()[:64] not in path.read_bytes()


def test_inputs_that_push_the_drift_are_kept_for_drift(
    serving: Path, keys: tuple[PrivateKey, str]
) -> None:
    ask(serving, keys[1], "drift", samples=2)
    keeper, shifted = SampleKeeper(serving, "tiny"), recorder()
    for number in range(40):
        shifted.offer({"x": picture(100 + number, level=-1.5)}, scores(0.9))
        shifted.snapshot()
    for number, level in enumerate((-1.0, 2.0, 0.0, -3.0)):
        keeper.offer({"x": picture(number, level)}, scores(0.9), shifted)
    keeper.write()
    found = opened(serving, keys[0], "drift")
    assert [round(float(one.mean())) for one in found] == [-1, -3], "not those against the drift"
    unshifted = recorder()
    assert unshifted.rank({"x": picture(1, 3.0)}, scores(0.9)).push == 0, "nothing is known yet"


def test_disagreements_and_near_duplicates(serving: Path, keys: tuple[PrivateKey, str]) -> None:
    ask(serving, keys[1], "shadow")
    keeper = SampleKeeper(serving, "tiny")
    still = picture(1)
    noise = np.float32(0.02) * picture(2)
    for feeds in (still, still + noise, picture(3), still):
        keeper.note_disagreement({"x": feeds})
    keeper.offer({"x": picture(9)}, scores(0.5), recorder())
    keeper.write()
    assert len(opened(serving, keys[0], "shadow")) == 2
    assert kept_samples(serving, "tiny") == [], "none in the clear"


@pytest.mark.parametrize(
    ("recipient", "feeds", "words"),
    [
        ("no key", picture(1), "no PEM public key"),
        ("", np.zeros((1, MAX_SAMPLE_BYTES // 4 + 1), np.float32), "more than 16 MB"),
        ("", np.full((1, 3, 8, 8), np.nan, np.float32), "NaN or infinity"),
        ("", np.full((1, 3, 8, 8), np.inf, np.float32), "NaN or infinity"),
    ],
)
def test_an_input_that_cannot_be_encrypted_is_dropped_and_counted(
    serving: Path, keys: tuple[PrivateKey, str], recipient: str, feeds: Singles, words: str
) -> None:
    ask(serving, recipient or keys[1], "shadow")
    keeper = SampleKeeper(serving, "tiny")
    for _ in range(3):
        keeper.note_disagreement({"x": feeds})
        keeper.write()
    dropped = dropped_samples(serving, "tiny", "r1")
    assert dropped.count == 3
    assert words in dropped.because
    names = {path.suffix for path in captured_folder(serving).iterdir()}
    assert names == {".json", ".dropped"}, "neither encrypted nor in the clear"


def test_a_full_disk_drops_the_input(
    serving: Path, keys: tuple[PrivateKey, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(serving, keys[1], "shadow")
    keeper = SampleKeeper(serving, "tiny")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(capture, "keep_content", full)
    keeper.note_disagreement({"x": picture(1)})
    keeper.write()
    assert "No space left" in dropped_samples(serving, "tiny", "r1").because
    assert list(captured_folder(serving).glob("*.sealed")) == []


def test_the_bytes_on_the_disk_are_bounded(serving: Path, keys: tuple[PrivateKey, str]) -> None:
    ask(serving, keys[1], "shadow", samples=1000, max_bytes=5000)
    keeper = SampleKeeper(serving, "tiny")
    for number in range(30):
        keeper.note_disagreement({"x": picture(number)})
        keeper.write()
    sizes = [path.stat().st_size for path in captured_folder(serving).glob("*.sealed")]
    assert 2 <= len(sizes) <= 5
    assert sum(sizes) <= 5000
    forget_samples(serving, "tiny")
    assert list(captured_folder(serving).glob("*.sealed")) == []


def test_samples_of_a_request_that_ended_are_removed(
    serving: Path, keys: tuple[PrivateKey, str]
) -> None:
    ask(serving, keys[1], "shadow")
    keeper = SampleKeeper(serving, "tiny")
    keeper.note_disagreement({"x": picture(1)})
    keeper.write()
    uploading = CaptureSettings(samples=0, max_bytes=10**6, uploading=("r1",))
    assert switch_capture(serving, uploading) == ""
    assert len(list(captured_folder(serving).glob("*.sealed"))) == 1
    other = CaptureSettings(samples=0, max_bytes=10**6, uploading=("r2",))
    assert switch_capture(serving, other) == ""
    assert list(captured_folder(serving).glob("*.sealed")) == []
    assert switch_capture(serving, CaptureSettings(samples=0, max_bytes=10**6)) == ""
    assert not captured_folder(serving).exists()


def test_a_sample_opens_with_its_key_and_at_its_place_alone(
    serving: Path, keys: tuple[PrivateKey, str], tmp_path: Path
) -> None:
    ask(serving, keys[1], "shadow")
    keeper = SampleKeeper(serving, "tiny")
    keeper.note_disagreement({"x": picture(1)})
    keeper.write()
    (kept,) = kept_samples(serving, "tiny", sealed_suffix("r1", "shadow"))
    content = kept.path.read_bytes()
    other = load_private_key(write_key_pair(generate_key(), tmp_path / "other")[0])
    with pytest.raises(DeviceError, match="encrypted to others"):
        open_sample(content, other, PLACE)
    for own, elsewhere in (("cam-1", "cam-2"), ("tiny", "tiny2"), ("r1", "r2")):
        with pytest.raises(BundleError):
            open_sample(content, keys[0], PLACE.replace(own, elsewhere))
    for at in (5, len(content) // 2, len(content) - 1):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises((BundleError, DeviceError)):
            open_sample(changed, keys[0], PLACE)


def test_texts_that_no_setting_names_are_not_kept_with_a_reason(
    serving: Path, keys: tuple[PrivateKey, str]
) -> None:
    ask(serving, keys[1], "doubt")
    keeper, built = SampleKeeper(serving, "tiny"), recorder()
    keeper.are_texts = True
    keeper.offer({"x": picture(0)}, scores(0.5), built)
    keeper.write()
    assert opened(serving, keys[0], "doubt") == []
    dropped = dropped_samples(serving, "tiny", "r1")
    assert dropped.count == 0
    assert "[capture] texts" in dropped.because
