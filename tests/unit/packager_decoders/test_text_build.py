"""A build of a language model on prompts with answers, from the command to its report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner, Result

from edgepack.bundle.golden import compare_outputs, read_golden
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import decode_manifest
from edgepack.cli import cli
from edgepack.tasks.details import DIVERGENCE, FORCED_TOKENS, PERPLEXITY_RATIO
from tests.unit.packager_decoders.drawn_decoder import WORDS, Feeds, draw_decoder, prompts
from tests.unit.packager_decoders.word_tokenizer import words_of, write_tokenizer

pytest.importorskip("tokenizers")

_ANSWER = 8
_DAMAGED = """
[profile]
name = "damaged"
extends = "cpu-int4"
[gates]
float_instead = []
[[pass]]
name = "quantize_weights"
methods = ["rtn"]
block_size = 64
high_precision_bits = 0
max_float_share = 0.0
"""


class _Model:
    """A model in plain ONNX Runtime, which reads whole texts."""

    def __init__(self, path: Path) -> None:
        self._session = onnxruntime.InferenceSession(path)

    def logits(self, tokens: list[int]) -> Any:
        feeds: Feeds = prompts(1)[0] | {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, len(tokens)), np.int64),
            "position_ids": np.arange(len(tokens))[None],
        }
        return self._session.run(["logits"], feeds)[0][0].astype(np.float64)

    def shares(self, tokens: list[int]) -> Any:
        grown = np.exp(self.logits(tokens))
        return grown / grown.sum(axis=-1, keepdims=True)


def _write_prompts(path: Path, model: _Model, count: int, seed: int) -> list[list[int]]:
    """Write prompts with answers that the float model may give; return the texts."""
    rng, texts = np.random.default_rng(seed), []
    for feeds in prompts(count, seed=seed):
        tokens = feeds["input_ids"][0].astype(int).tolist()
        for _ in range(_ANSWER):
            tokens.append(int(rng.choice(WORDS, p=model.shares(tokens)[-1])))
        texts.append(tokens)
    lines = []
    for tokens in texts:
        words = [words_of()[token] for token in tokens]
        lines.append({"prompt": " ".join(words[:-_ANSWER]), "answer": " ".join(words[-_ANSWER:])})
    path.write_text("\n".join(map(json.dumps, lines)))
    return texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    onnx.save(draw_decoder(memory=2.0), folder / "said.onnx")
    write_tokenizer(folder)
    write_key_pair(generate_key(), folder / "release")
    (folder / "damaged.toml").write_text(_DAMAGED)
    _write_prompts(folder / "prompts.jsonl", _Model(folder / "said.onnx"), 40, seed=1)
    return folder


@pytest.fixture(scope="module")
def texts(folder: Path) -> list[list[int]]:
    return _write_prompts(folder / "held-out.jsonl", _Model(folder / "said.onnx"), 30, seed=2)


def _build(folder: Path, profile: str, *options: str) -> Result:
    words = f"build said.onnx --profile {profile} --calibration prompts.jsonl --evaluation"
    words += f" held-out.jsonl --key release.key -o {Path(profile).stem}-1.0.0"
    arguments = [*words.split(), *options]
    known = {"said.onnx", "prompts.jsonl", "held-out.jsonl", "release.key", "damaged.toml"}
    placed = [str(folder / a) if a in known or a.endswith("-1.0.0") else a for a in arguments]
    return CliRunner().invoke(cli, placed)


@pytest.fixture(scope="module")
def built(folder: Path, texts: list[list[int]]) -> Path:
    done = _build(folder, "cpu-int4")
    assert not done.exception, done.output
    return folder / "cpu-int4-1.0.0"


def test_report_has_perplexity_and_divergence_as_a_script_outside_computes(
    built: Path, folder: Path, texts: list[list[int]]
) -> None:
    source = _Model(folder / "said.onnx")
    variant = _Model(built / "model" / "cpu-int4" / "model.onnx")
    nats, divergence, same = [], [], []
    for tokens in texts:
        places = np.arange(len(tokens) - _ANSWER - 1, len(tokens))
        want, have = source.shares(tokens)[places], variant.shares(tokens)[places]
        answer = tokens[-_ANSWER:]
        rows = np.arange(_ANSWER)
        nats += (np.log(want[rows, answer]) - np.log(have[rows, answer])).tolist()
        divergence += (want * np.log(want / have)).sum(axis=-1).tolist()
        same += (want.argmax(-1) == have.argmax(-1)).tolist()
    report = json.loads((folder / "cpu-int4-1.0.0.report.json").read_bytes())
    (written,) = report["variants"]
    details = written["accuracy"]["details"]
    assert details[PERPLEXITY_RATIO] == pytest.approx(np.exp(np.mean(nats)), abs=2e-3)
    assert details[DIVERGENCE] == pytest.approx(np.mean(divergence), abs=5e-4)
    assert details[FORCED_TOKENS] == pytest.approx(np.mean(same), abs=0.01)
    assert details[DIVERGENCE] <= 0.005
    assert details[PERPLEXITY_RATIO] <= 1.01
    assert written["size_bytes"] < (folder / "said.onnx").stat().st_size / 3
    html = (folder / "cpu-int4-1.0.0.report.html").read_text()
    assert "times the float model" in html
    assert "answer token" in html


def test_a_damaged_model_is_rejected_with_its_numbers(folder: Path, texts: list[list[int]]) -> None:
    done = _build(folder, str(folder / "damaged.toml"))
    assert done.exit_code == 1 or done.exception
    assert not (folder / "damaged-1.0.0").exists()
    words = f"{done.output} {done.exception}"
    assert "token_likelihood" in words or "answer_likelihood" in words


def test_a_device_reads_whole_golden_texts_and_compares_the_last_places(built: Path) -> None:
    golden = read_golden(built / "golden" / "golden.npz")
    assert {outputs["logits"].shape for outputs in golden.outputs} == {(1, 8, WORDS)}
    (variant,) = decode_manifest((built / "manifest.json").read_bytes()).variants
    session = onnxruntime.InferenceSession(built / "model" / "cpu-int4" / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    got = [dict(zip(names, session.run(names, feeds), strict=True)) for feeds in golden.inputs]

    def is_right(outputs: list[dict[str, Any]]) -> bool:
        facts = variant.facts
        return compare_outputs(golden.outputs, outputs, facts.tolerances, facts.agreements).right

    assert is_right(got)
    broken = [outputs | {"logits": np.roll(outputs["logits"], 1, axis=-1)} for outputs in got]
    assert not is_right(broken)
