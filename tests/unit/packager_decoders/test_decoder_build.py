"""A whole build of a decoder, compared with a roll-out outside the tool."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner

from edgepack.bundle.cli import inspect
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.packager import BuildResult, build
from edgepack.packager.reports.page import render_report
from tests.unit.packager_decoders.drawn_decoder import Feeds, draw_decoder, prompts

_STEPS = 60
_PROFILE = """
[profile]
name = "few-bits"
extends = "cpu-int4"
[gates]
float_instead = []
[[pass]]
name = "quantize_weights"
methods = ["rtn"]
high_precision_bits = 0
max_float_share = 0.0
"""
"""Every weight in four bits: it keeps less than the budget."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    folder = tmp_path_factory.mktemp("decoder")
    onnx.save(draw_decoder(memory=2.0), folder / "said.onnx")
    (folder / "few-bits.toml").write_text(_PROFILE)
    write_key_pair(generate_key(), folder / "release")
    return build(
        folder / "said.onnx",
        profiles=[str(folder / "few-bits.toml")],
        calibration=prompts(40),
        evaluation=prompts(40, seed=1),
        key=folder / "release.key",
        output=folder / "said-1.0.0",
        allow_degraded=True,
    )


class _Outside:
    """A model in plain ONNX Runtime, which is fed its own cache."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options)
        self._names = [output.name for output in self._session.get_outputs()]

    def scores(self, feeds: Feeds) -> Feeds:
        return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))

    def choose(self, feeds: Feeds, forced: list[int] | None = None) -> list[int]:
        """Return sixty choices, after its own tokens or after others."""
        chosen: list[int] = []
        for step in range(_STEPS):
            outputs = self.scores(feeds)
            chosen.append(int(outputs["logits"][0, -1].argmax()))
            taken = chosen[-1] if forced is None else forced[step]
            length = feeds["attention_mask"].size + 1
            feeds = {
                "input_ids": np.array([[taken]]),
                "attention_mask": np.ones((1, length), np.int64),
                "position_ids": np.array([[length - 1]]),
            } | {
                name.replace("present", "past_key_values"): value
                for name, value in outputs.items()
                if name != "logits"
            }
        return chosen

    def choices_in(self, prompt: Feeds, said: list[int]) -> npt.NDArray[np.int64]:
        """Return the choices in each place of a text, read at once."""
        tokens = np.concatenate([prompt["input_ids"][0], said[:-1]])
        caches = {name: value for name, value in prompt.items() if name.startswith("past")}
        read = self.scores(
            {
                "input_ids": tokens[None],
                "attention_mask": np.ones((1, len(tokens)), np.int64),
                "position_ids": np.arange(len(tokens))[None],
                **caches,
            }
        )
        return np.asarray(read["logits"][0, -_STEPS:].argmax(axis=-1))


def _roll_out(built: BuildResult, samples: list[Feeds]) -> dict[str, float]:
    """Return the share of the variant's choices that equal the float model's, after its own tokens
    and after these.
    """
    variant = _Outside(built.output / "model" / "few-bits" / "model.onnx")
    source = _Outside(built.output.parent / "said.onnx")
    free, forced = [], []
    for prompt in samples:
        said = variant.choose(prompt)
        free.append(np.mean(source.choices_in(prompt, said) == said))
        expected = source.choose(prompt)
        forced.append(np.mean(np.array(variant.choose(prompt, expected)) == expected))
    return {"free": float(np.mean(free)), "forced": float(np.mean(forced))}


def test_the_verdict_on_a_decoder_is_what_a_roll_out_outside_gives(built: BuildResult) -> None:
    """Sixty steps, each model with its own cache: on the verdict's and on unseen samples."""
    details = built.variants["few-bits"].accuracy.details
    for kind, value in _roll_out(built, prompts(40, seed=1)).items():
        assert value == pytest.approx(details[f"{kind}_token_agreement"], abs=0.005)
    for kind, value in _roll_out(built, prompts(100, seed=99)).items():
        name = f"{kind}_token_agreement"
        low, high = details[f"{name}_low"], details[f"{name}_high"]
        assert low <= value <= high
        assert high - low < 0.1


def test_a_decoder_that_loses_its_tokens_is_published_only_as_degraded(built: BuildResult) -> None:
    variant = built.variants["few-bits"]
    assert variant.degraded
    assert variant.accuracy.metric == "token_agreement"
    assert 0.8 < variant.accuracy.value < variant.accuracy.budget == 0.99
    notes = " ".join((*built.report.notes, *variant.notes))
    assert (
        "A decoder: 'input_ids' takes tokens, 'logits' scores the next one, and 4 caches" in notes
    )
    assert "of the float model's tokens, fed the cache that it made itself" in notes
    assert "Published although: profile 'few-bits' keeps 0." in notes
    shown = CliRunner().invoke(inspect, [str(built.output)])
    assert "tokens as float's 0." in shown.output


def test_the_report_tells_agreement_by_position(built: BuildResult) -> None:
    positions = built.report.variants[0].positions
    assert isinstance(positions, tuple)
    assert [(at.first, at.last) for at in positions] == [(8 * n + 1, 8 * n + 8) for n in range(8)]
    assert [at.same for at in positions] == sorted((at.same for at in positions), reverse=True)
    assert positions[-1].divergence > 0.0
    page = render_report(built.report)
    assert "Agreement by position" in page
    assert "57…64" in page
