"""Chains of tokens: inputs of a candidate, loss over time, and lengths."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from edgepack.packager.config.inputs import WantedInputs
from edgepack.packager.gates.tokens import MOST_STEPS, TokenReference, follow_float
from edgepack.packager.graph.model_files import open_on_cpu
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.progress import silent
from edgepack.packager.runtime.model_run import Run, run_of
from edgepack.packager.samples import token_steps
from edgepack.packager.samples.decoders import follow_tokens
from edgepack.packager.samples.files import OpenedSamples, open_samples
from edgepack.packager.samples.token_steps import take_later_steps
from edgepack.packager.search.context import describe_context
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.source.model import SourceModel, load_source
from edgepack.packager.tensors.decoders import Cache, Decoder
from edgepack.packager.tensors.sequence import Feeds, Samples, SampleSplit
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.tokens.agreement import TokenAgreement, measure_tokens
from tests.unit.packager_decoders.drawn_decoder import (
    PLACES,
    draw_decoder,
    prompts,
    single_steps,
    without_caches,
)


def _open(model: onnx.ModelProto, samples: list[Feeds], folder: Path) -> tuple[Run, Samples]:
    path = folder / "model.onnx"
    onnx.save(model, path)
    source = load_source(path)
    opened = _write(samples, source, folder)
    followed = follow_tokens(opened, source, {}, {})
    return run_of(open_on_cpu(path, threads=1)), followed.samples


def _write(samples: list[Feeds], source: SourceModel, folder: Path) -> OpenedSamples:
    where = folder / "samples"
    where.mkdir()
    for number, feeds in enumerate(samples):
        np.savez(where / f"{number:03}.npz", **feeds)  # type: ignore[arg-type]
    return open_samples(str(where), WantedInputs(specs=source.inputs), silent)


def _agreement(judge: CandidateJudge, run: Run) -> TokenAgreement:
    """Measure chains from every sample, which a judge may end early."""
    assert judge._tokens is not None
    return measure_tokens([judge._tokens.follow(run, index)[1] for index in range(judge.count)])


def test_a_candidate_is_never_fed_what_the_float_model_kept(tmp_path: Path) -> None:
    float_run, samples = _open(draw_decoder(memory=3.0), prompts(4), tmp_path)
    given = {id(value) for feeds in samples for value in feeds.values()}
    made: dict[int, object] = {}

    def candidate(feeds: Feeds) -> Outputs:
        for name, value in feeds.items():
            if name.startswith("past") and value.size:
                assert id(value) in made or id(value) in given
        outputs = float_run(feeds)
        outputs["logits"] = np.roll(outputs["logits"], 1, axis=-1)
        made.update({id(value): value for value in outputs.values()})
        return outputs

    judge = CandidateJudge(float_run, samples, {}, None)
    assert judge.judge(candidate).value < 0.1


def test_what_is_right_in_each_step_and_forgets_is_refused(tmp_path: Path) -> None:
    """A step is right to the last bit; the resulting cache is a little off each time."""
    float_run, samples = _open(draw_decoder(memory=3.0), prompts(16), tmp_path)

    def forgetful(feeds: Feeds) -> Outputs:
        outputs = float_run(feeds)
        return {
            name: value if name == "logits" else np.multiply(value, np.float32(0.97))
            for name, value in outputs.items()
        }

    judge = CandidateJudge(float_run, samples, {}, None)
    single = judge.reference.measure([forgetful(feeds) for feeds in samples])
    whole = [measure for agreement in single for measure in agreement.measures]
    assert {measure.value for measure in whole if measure.output == "logits"} == {1.0}
    verdict = judge.judge(forgetful, at_least=-np.inf)
    assert verdict.metric == "token_agreement"
    assert not verdict.passed
    agreement = _agreement(judge, forgetful)
    assert verdict.value == agreement.value
    assert agreement.growth > 10.0
    first, *_, last = agreement.positions
    assert verdict.positions == agreement.positions
    assert (first.same, first.divergence < last.divergence, last.same) == (0.5, True, 0.0)
    assert judge.judge(float_run).value == 1.0


def test_a_cache_of_fixed_size_says_what_an_open_one_says(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "fixed").mkdir()
    steps = single_steps(5, 80)
    fixed_run, fixed = _open(draw_decoder(memory=3.0, past=80), steps, tmp_path / "fixed")
    opened = [_without_cache(feeds) for feeds in steps]
    open_run, begun = _open(draw_decoder(memory=3.0), opened, tmp_path / "open")
    assert fixed.decoder is not None
    assert begun.decoder is not None
    assert [cache.places for cache in fixed.decoder.caches] == [80] * 4
    for one, other in zip(fixed, begun, strict=True):
        said = follow_float(fixed_run, fixed.decoder, one).tokens
        assert said.tolist() == follow_float(open_run, begun.decoder, other).tokens.tolist()
        assert len(said) == MOST_STEPS


def _without_cache(feeds: Feeds) -> Feeds:
    short = {name: value[:, :, :0] for name, value in feeds.items() if name.startswith("past")}
    return feeds | short | {"attention_mask": feeds["attention_mask"][:, -1:]}


def test_a_chain_ends_where_the_model_has_no_more_positions(tmp_path: Path) -> None:
    late = [feeds | {"position_ids": feeds["position_ids"] + PLACES - 30} for feeds in prompts(3)]
    float_run, samples = _open(draw_decoder(), late, tmp_path)
    assert samples.decoder is not None
    for feeds in samples:
        chain = follow_float(float_run, samples.decoder, feeds)
        assert len(chain.tokens) == 30 - feeds["input_ids"].size + 1


def test_padding_behind_a_prompt_is_no_text(tmp_path: Path) -> None:
    float_run, samples = _open(draw_decoder(memory=3.0), [*_padded(prompts(5))], tmp_path)
    judge = CandidateJudge(float_run, samples, {}, None)
    (tmp_path / "plain").mkdir()
    _, plain = _open(draw_decoder(memory=3.0), prompts(5), tmp_path / "plain")
    assert plain.decoder is not None
    assert plain.decoder == samples.decoder
    expected = [follow_float(float_run, plain.decoder, feeds) for feeds in plain]
    assert isinstance(judge._tokens, TokenReference)
    for chain, other in zip(judge._tokens._chains, expected, strict=True):
        assert chain.tokens.tolist() == other.tokens.tolist()


def _padded(samples: list[Feeds]) -> Iterator[Feeds]:
    for feeds in samples:
        ids, mask = feeds["input_ids"], feeds["attention_mask"]
        yield feeds | {
            "input_ids": np.concatenate([ids, np.zeros((1, 4), np.int64)], axis=1),
            "attention_mask": np.concatenate([mask, np.zeros((1, 4), np.int64)], axis=1),
            "position_ids": np.arange(ids.size + 4)[None],
        }


_END, _WORDS = 0, 12
_COUNTER = Decoder(
    tokens="token", scores="scores", caches=(Cache(input="at", output="next"),), rules={}
)


def _count_down(wrong_at: int = -1) -> Run:
    """Return a run that counts down, and then returns 0 forever; at a given number the run returns
    another number.
    """

    def run(feeds: Feeds) -> Outputs:
        at = int(feeds["token"][0, 0])
        said = 1 if at == wrong_at else max(at - 1, _END)
        scores = np.full((1, _WORDS), -9.0, np.float32)
        scores[0, said] = 9.0
        return {"scores": scores, "next": feeds["at"]}

    return run


def test_what_is_said_after_the_end_of_a_text_does_not_count() -> None:
    """Check that a text of two has a wrong word of four: not of sixty-four."""
    feeds = [{"token": np.array([[n]]), "at": np.zeros(1)} for n in (10, 3) * 8]
    samples = Samples(count=16, read=lambda index: dict(feeds[index]), source="", decoder=_COUNTER)
    judge = CandidateJudge(_count_down(), samples, {}, None)
    perfect = judge.judge(_count_down())
    whole = _agreement(judge, _count_down())
    assert (perfect.value, whole.count, whole.steps) == (1.0, 8 * (10 + 3), 10)
    assert not perfect.remarks
    alike = CandidateJudge(_count_down(), samples.pick([0, 2]), {}, None)
    assert "says the same after all 2 samples" in alike.judge(_count_down()).remarks[0]
    verdict = judge.judge(_count_down(wrong_at=8), at_least=-np.inf)
    agreement = _agreement(judge, _count_down(wrong_at=8))
    assert agreement.free.value == pytest.approx(1 - 8 / (8 * (4 + 3)))
    assert agreement.positions[-1].same == 0.5
    assert not verdict.passed


def test_a_chain_ends_at_the_token_that_the_folder_states() -> None:
    decoder = replace(_COUNTER, end=5)
    feeds = {"token": np.array([[10]]), "at": np.zeros(1)}
    samples = Samples(count=1, read=lambda index: dict(feeds), source="", decoder=decoder)
    judge = CandidateJudge(_count_down(), samples, {}, None)
    assert _agreement(judge, _count_down()).count == 10 - 5


def test_no_range_is_taken_from_behind_the_end_of_a_text(tmp_path: Path) -> None:
    feeds = [{"token": np.array([[6]]), "at": np.zeros(1)} for _ in range(32)]
    samples = Samples(count=32, read=lambda index: dict(feeds[index]), source="", decoder=_COUNTER)
    split = SampleSplit(calibration=samples, search=samples, held_out=samples, sha256="ab")
    further, _ = take_later_steps(split, _count_down(), tmp_path / "texts", silent)
    fed = [int(each["token"][0, 0]) for each in further.calibration]
    assert fed[:6] == [6, 5, 4, 3, 2, 1]
    assert _END not in fed, "nobody feeds a decoder the token that ends its text"


def test_chains_that_go_on_have_no_end(tmp_path: Path) -> None:
    float_run, samples = _open(draw_decoder(memory=3.0), prompts(6), tmp_path)
    judge = CandidateJudge(float_run, samples, {}, None)
    assert _agreement(judge, float_run).count == 6 * MOST_STEPS


def test_a_text_that_is_read_again_goes_on_as_with_a_cache(tmp_path: Path) -> None:
    for folder in ("kept", "read"):
        (tmp_path / folder).mkdir()
    run, samples = _open(draw_decoder(memory=3.0), prompts(4), tmp_path / "kept")
    plain = [
        {name: value for name, value in feeds.items() if not name.startswith("past")}
        for feeds in prompts(4)
    ]
    model = without_caches(draw_decoder(memory=3.0))
    run_again, samples_again = _open(model, plain, tmp_path / "read")
    assert samples.decoder is not None
    assert samples_again.decoder is not None
    same = [
        np.array_equal(
            follow_float(run, samples.decoder, feeds).tokens,
            follow_float(run_again, samples_again.decoder, again).tokens,
        )
        for feeds, again in zip(samples, samples_again, strict=True)
    ]
    assert all(same)


def test_ranges_are_taken_from_all_along_a_text(tmp_path: Path) -> None:
    float_run, samples = _open(draw_decoder(memory=3.0), prompts(5), tmp_path)
    split = SampleSplit(calibration=samples, search=samples, held_out=samples, sha256="ab")
    further, notes = take_later_steps(split, float_run, tmp_path / "texts", silent)
    later = further.calibration
    assert "Samples for ranges are from the first 5 steps" in notes[0]
    assert later.read(0)["input_ids"].size > 1
    for number in range(1, 5):
        begun, feeds = samples.read(number), later.read(number)
        assert feeds["input_ids"].size == 1
        assert feeds["attention_mask"].size == begun["attention_mask"].size + number
        assert feeds["past_key_values.0.key"].shape[2] == feeds["attention_mask"].size - 1
    again, notes = take_later_steps(further, float_run, tmp_path / "more", silent)
    assert (again, notes) == (further, ())


def test_what_was_measured_with_other_steps_is_not_recalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    float_run, samples = _open(draw_decoder(memory=3.0), prompts(5), tmp_path)
    source = load_source(tmp_path / "model.onnx")
    split = SampleSplit(calibration=samples, search=samples, held_out=samples, sha256="ab")

    def context(folder: str) -> str:
        later, _ = take_later_steps(split, float_run, tmp_path / folder, silent)
        return describe_context(source, later, load_profile("cpu"), None)

    first = context("first")
    assert context("again") == first
    monkeypatch.setattr(token_steps, "_STEPS", 2)
    assert context("fewer") != first
