"""A build of a language model on prompts with answers, from the command to its report."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner, Result

from edgepack.bundle.golden import compare_outputs, read_golden
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import Manifest, decode_manifest
from edgepack.cli import cli
from edgepack.tasks.details import (
    DIVERGENCE,
    FLOAT_PERPLEXITY,
    FORCED_TOKENS,
    PERPLEXITY_RATIO,
)

_EXAMPLES = Path(__file__).parents[2] / "huggingface"
_DAMAGED = """
[profile]
name = "damaged"
extends = "cpu-int4"
[gates]
float_instead = []
[[pass]]
name = "quantize_weights"
methods = ["rtn"]
block_size = 128
high_precision_bits = 0
max_float_share = 0.0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_key_pair(generate_key(), folder / "release")
    (folder / "damaged.toml").write_text(_DAMAGED)
    lines = (_EXAMPLES / "prompts.jsonl").read_text().splitlines()
    (folder / "prompts.jsonl").write_text("\n".join(lines[::2]))
    (folder / "held-out.jsonl").write_text("\n".join(lines[1::2]))
    return folder


def _build(
    folder: Path, name: str, *profiles: str, model: Path = _EXAMPLES / "llama", strict: bool = False
) -> Result:
    words = ["build", str(model), "--key", str(folder / "release.key")]
    words += ["--strict"] if strict else []
    words += ["--calibration", str(folder / "prompts.jsonl")]
    words += ["--evaluation", str(folder / "held-out.jsonl"), "-o", str(folder / name)]
    for profile in profiles:
        words += ["--profile", profile]
    return CliRunner().invoke(cli, words)


@pytest.fixture(scope="module")
def built(folder: Path) -> Path:
    done = _build(folder, "chat-1.0.0", "cpu-int4", "fp32")
    assert not done.exception, done.output
    return folder / "chat-1.0.0"


class _Model:
    """A variant in plain ONNX Runtime, which reads whole texts."""

    def __init__(self, bundle: Path, variant: str) -> None:
        path = bundle / "model" / variant / "model.onnx"
        self._session = onnxruntime.InferenceSession(path)

    def shares(self, tokens: list[int]) -> Any:
        """Return the probabilities of the next token at each place, (tokens, vocabulary)."""
        feeds: dict[str, Any] = {
            spec.name: np.zeros((1, 2, 0, 32), np.float32) for spec in self._session.get_inputs()
        }
        feeds |= {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, len(tokens)), np.int64),
        }
        logits = self._session.run(["logits"], feeds)[0][0].astype(np.float64)
        grown = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return grown / grown.sum(axis=-1, keepdims=True)


def _read_texts(path: Path) -> list[tuple[list[int], list[int]]]:
    """Return tokens of the prompt and of the answer, as the template of ChatML makes these."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_EXAMPLES / "llama" / "tokenizer.json"))
    texts = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        prompt = (
            entry.get("prompt")
            or "".join(
                f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n"
                for one in entry["messages"]
            )
            + "<|im_start|>assistant\n"
        )
        is_rendered = "messages" in entry
        before = tokenizer.encode(prompt, add_special_tokens=not is_rendered).ids
        answer = tokenizer.encode(entry["answer"], add_special_tokens=False).ids
        texts[str((before, answer))] = (before, answer)
    return list(texts.values())


def test_report_has_perplexity_and_divergence_as_a_script_outside_computes(
    built: Path, folder: Path
) -> None:
    source, variant = _Model(built, "fp32"), _Model(built, "cpu-int4")
    nats, own, divergence, same = [], [], [], []
    for before, answer in _read_texts(folder / "held-out.jsonl"):
        tokens, rows = [*before, *answer], np.arange(len(answer))
        places = np.arange(len(before) - 1, len(tokens))
        want, have = source.shares(tokens)[places], variant.shares(tokens)[places]
        own += np.log(want[rows, answer]).tolist()
        nats += (np.log(want[rows, answer]) - np.log(have[rows, answer])).tolist()
        divergence += (want * np.log(want / have)).sum(axis=-1).tolist()
        same += (want.argmax(-1) == have.argmax(-1)).tolist()
    report = json.loads((folder / "chat-1.0.0.report.json").read_bytes())
    written = next(one for one in report["variants"] if one["profile"] == "cpu-int4")
    details = written["accuracy"]["details"]
    assert details[FLOAT_PERPLEXITY] == pytest.approx(np.exp(-np.mean(own)), rel=1e-3)
    assert details[PERPLEXITY_RATIO] == pytest.approx(np.exp(np.mean(nats)), abs=1e-3)
    assert details[DIVERGENCE] == pytest.approx(np.mean(divergence), abs=2e-4)
    assert details[FORCED_TOKENS] == pytest.approx(np.mean(same), abs=0.005)
    assert details[DIVERGENCE] <= 0.005
    assert details[PERPLEXITY_RATIO] <= 1.01
    html = (folder / "chat-1.0.0.report.html").read_text()
    assert "times the float model" in html
    assert "answer tokens" in html


def test_few_bits_take_fewer_bytes_than_the_mix_of_genais_builder(
    folder: Path, built: Path
) -> None:
    """`k_quant_mixed` of onnxruntime-genai 0.18 has 437,210 bytes, and a larger divergence."""
    report = json.loads((folder / "chat-1.0.0.report.json").read_bytes())
    written = next(one for one in report["variants"] if one["profile"] == "cpu-int4")
    assert written["size_bytes"] < 380_000


def test_a_damaged_model_is_rejected_with_its_numbers(folder: Path) -> None:
    done = _build(folder, "damaged-1.0.0", str(folder / "damaged.toml"))
    assert done.exception
    assert not (folder / "damaged-1.0.0").exists()
    words = f"{done.output} {done.exception}"
    assert "token_likelihood" in words or "answer_likelihood" in words


def test_a_device_reads_whole_golden_texts_and_compares_the_last_places(built: Path) -> None:
    golden = read_golden(built / "golden" / "golden.npz")
    assert {outputs["logits"].shape for outputs in golden.outputs} == {(1, 8, 512)}
    manifest: Manifest = decode_manifest((built / "manifest.json").read_bytes())
    assert manifest.facts.generation is not None
    assert manifest.facts.generation.prompts == len(golden.inputs)
    variant = next(one for one in manifest.variants if one.name == "cpu-int4")

    def run(prepacking: str) -> list[dict[str, Any]]:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.disable_prepacking", prepacking)
        path = built / "model" / "cpu-int4" / "model.onnx"
        session = onnxruntime.InferenceSession(path, options)
        names = [output.name for output in session.get_outputs()]
        return [dict(zip(names, session.run(names, feeds), strict=True)) for feeds in golden.inputs]

    def is_right(outputs: list[dict[str, Any]]) -> bool:
        facts = variant.facts
        return compare_outputs(golden.outputs, outputs, facts.tolerances, facts.agreements).right

    got, other = run("0"), run("1")
    assert is_right(got)
    assert is_right(other), "other kernels prefer other tokens in places, as other processors do"
    rolled = [outputs | {"logits": np.roll(outputs["logits"], 1, axis=-1)} for outputs in got]
    assert not is_right(rolled)
    flat = [outputs | {"logits": outputs["logits"] * np.float32(0.5)} for outputs in got]
    assert not is_right(flat), "the preferred tokens are the same, and their probabilities are not"


def test_answers_that_the_float_model_does_not_know_make_verdicts_weak(folder: Path) -> None:
    model = shutil.copytree(_EXAMPLES / "llama", folder / "untrained")
    path, rng = model / "model.safetensors", np.random.default_rng(0)
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    for name, tensor in json.loads(content[8:begin]).items():
        if name != "__metadata__" and len(tensor["shape"]) > 1:
            first, end = (begin + place for place in tensor["data_offsets"])
            drawn = (rng.standard_normal((end - first) // 2) * 0.05).astype("<f4")
            content[first:end] = (drawn.view("<u4") >> 16).astype("<u2").tobytes()
    path.write_bytes(content)
    done = _build(folder, "untrained-1.0.0", "cpu-int4", model=model, strict=True)
    assert done.exit_code == 1
    said = f"{done.exception} {done.output}"
    assert "a guess among its 512 tokens" in said
    assert not (folder / "untrained-1.0.0").exists()
