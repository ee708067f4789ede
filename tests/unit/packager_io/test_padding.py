"""Padding is recognized by the model's behaviour, and ignored by verdicts."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace
from onnx import TensorProto

from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.chains import run_samples
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.samples.padding import follow_mask
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.source.model import load_source
from edgepack.packager.tensors.sequence import Feeds, Mask, Samples
from edgepack.tasks.arrays import Outputs
from tests.graphs import graph_model
from tests.unit.packager_io.models import save

_ROWS, _WIDTH, _COUNT = 6, 16, 12


def _attention(path: Path, *, obeys: bool) -> Path:
    """Return each token's vector plus the mean of all vectors, or of the unmasked vectors."""
    table = np.random.default_rng(0).normal(size=(20, _WIDTH)).astype(np.float32)
    weights = "as_float" if obeys else "ones"
    constants: dict[str, npt.NDArray[Any]] = {
        "table": table,
        "zero": np.zeros(1, np.float32),
        "last": np.array([2], np.int64),
        "middle": np.array([1], np.int64),
    }
    model = graph_model(
        f"(int64[1,{_ROWS}] tokens, int64[1,{_ROWS}] look_at) "
        f"=> (float[1,{_ROWS},{_WIDTH}] hidden) {{ vectors = Gather(table, tokens) "
        f"as_float = Cast<to={TensorProto.FLOAT}>(look_at) ones = Pow(as_float, zero) "
        f"column = Unsqueeze({weights}, last) seen = Mul(vectors, column) "
        "sum = ReduceSum(seen, middle) count = ReduceSum(column, middle) "
        "mean = Div(sum, count) hidden = Add(vectors, mean) }",
        constants,
        opset=18,
        ir_version=10,
    )
    return save(model, path)


def _sentences(*, filled: bool = False) -> Samples:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 20, size=(_COUNT, 1, _ROWS))
    lengths = np.full(_COUNT, _ROWS) if filled else rng.integers(2, _ROWS, size=_COUNT)

    def read(index: int) -> Feeds:
        mask = (np.arange(_ROWS) < lengths[index]).astype(np.int64)[None]
        return {"tokens": tokens[index], "look_at": mask}

    return Samples(count=_COUNT, read=read, source="made")


def _found(path: Path, samples: Samples, *, obeys: bool) -> OpenedSamples:
    opened = OpenedSamples(samples=samples, digests=(), notes=())
    return follow_mask(opened, load_source(_attention(path, obeys=obeys)))


def test_an_input_that_the_model_obeys_is_a_mask_whatever_its_name(tmp_path: Path) -> None:
    found = _found(tmp_path / "model.onnx", _sentences(), obeys=True)
    assert found.samples.mask == Mask(input="look_at", outputs=("hidden",))
    assert found.samples.pick([1]).mask == found.samples.mask
    (note,) = found.notes
    assert note.startswith("Input 'look_at' tells padding, ")
    assert "'hidden'" in note


def test_zeros_and_ones_that_hide_nothing_are_no_mask(tmp_path: Path) -> None:
    found = _found(tmp_path / "model.onnx", _sentences(), obeys=False)
    assert found.samples.mask is None
    assert found.notes == ()


def test_samples_without_padding_have_no_mask(tmp_path: Path) -> None:
    found = _found(tmp_path / "model.onnx", _sentences(filled=True), obeys=True)
    assert found.samples.mask is None


def _noisy(feeds: Feeds, *, in_padding: bool) -> Outputs:
    """Return the outputs of a lossless model, with noise in the rows of a kind."""
    rng = np.random.default_rng(int(feeds["tokens"].sum()))
    hidden = np.repeat(feeds["tokens"][..., None], _WIDTH, axis=2).astype(np.float32)
    hidden *= rng.normal(1.0, 0.1, size=hidden.shape).astype(np.float32)
    noise = np.random.default_rng(2).normal(0.0, 5.0, size=hidden.shape).astype(np.float32)
    chosen = (feeds["look_at"] == 0) == in_padding
    return {"hidden": hidden + noise * chosen[..., None]}


def _exact(feeds: Feeds) -> Outputs:
    everywhere = np.ones_like(feeds["look_at"])
    return _noisy({**feeds, "look_at": everywhere}, in_padding=True)


@pytest.mark.parametrize("is_told", [True, False])
def test_noise_in_padding_counts_only_where_nothing_tells_of_padding(is_told: bool) -> None:
    mask = Mask(input="look_at", outputs=("hidden",)) if is_told else None
    samples = replace(_sentences(), mask=mask)
    judge = CandidateJudge(_exact, samples, {}, None)
    verdict = judge.judge(lambda feeds: _noisy(feeds, in_padding=True))
    assert verdict.passed == is_told
    assert (verdict.value == 1.0) == is_told
    assert not judge.judge(lambda feeds: _noisy(feeds, in_padding=False)).passed
    single = [_noisy(feeds, in_padding=True) for feeds in samples]
    assert judge.judge_single(single).spare == verdict.spare
    (whole,) = judge.reference.measure(single)
    assert whole.measures[0].value < 0.9, "what a device compares is whole outputs"


def test_a_candidate_whose_values_are_nan_is_refused_although_padding_is_too() -> None:
    samples = replace(_sentences(), mask=Mask(input="look_at", outputs=("hidden",)))
    reference = Reference(run_samples(_exact, samples), {})
    got = run_samples(_exact, samples)
    assert reference.judge(got).value == 1.0
    got[3]["hidden"][0, 0, 0] = np.nan
    verdict = reference.judge(got)
    assert not verdict.passed
    assert verdict.spare < 0.0


def _labels(scores: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True), np.float32)


def test_labels_of_padding_tokens_are_not_counted() -> None:
    samples = replace(_sentences(), mask=Mask(input="look_at", outputs=("hidden",)))

    def label(feeds: Feeds) -> Outputs:
        return {"hidden": _labels(_exact(feeds)["hidden"])}

    def mislabel(feeds: Feeds) -> Outputs:
        scores = label(feeds)["hidden"]
        return {"hidden": np.where((feeds["look_at"] == 0)[..., None], scores[..., ::-1], scores)}

    verdict = CandidateJudge(label, samples, {}, None).judge(mislabel)
    assert verdict.metric == "sequence_agreement"
    assert verdict.value == 1.0
