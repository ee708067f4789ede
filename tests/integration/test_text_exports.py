"""Exports of Optimum become decoders with fused attention, and write the texts of the export.

`tests/huggingface/record_exports.py` made the exports.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from edgepack.agent import open_model
from edgepack.bundle.forms import read_manifest
from edgepack.errors import BuildError
from edgepack.packager.progress import silent
from edgepack.packager.source.decoders.build import open_decoder
from edgepack.packager.source.decoders.exported import compare_logits
from edgepack.packager.source.decoders.shape import read_shape
from tests.huggingface.drawn_decoders import write_safetensors
from tests.integration.picture_builds import edgepack, install

EXPORTS = Path(__file__).parents[1] / "huggingface" / "exports"
PROMPT = list(range(2, 14))
TOKENS = 20


def _greedy(model: Path) -> list[int]:
    """Return the likeliest tokens behind the prompt, as the exported graph computes these."""
    session = onnxruntime.InferenceSession(model)
    inputs = {one.name: one for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    cache: dict[str, Any] = {
        name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32)
        for name, one in inputs.items()
        if len(one.shape) == 4
    }
    said: list[int] = []
    tokens, length = PROMPT, 0
    while len(said) < TOKENS:
        places = np.arange(length, length + len(tokens))[None]
        length += len(tokens)
        feeds = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, length), np.int64)}
        feeds |= {"position_ids": places} if "position_ids" in inputs else {}
        outputs = dict(zip(names, session.run(names, {**feeds, **cache}), strict=True))
        cache = {name: outputs[name.replace("past_key_values", "present")] for name in cache}
        tokens = [int(outputs["logits"][0, -1].argmax())]
        said += tokens
        if tokens == [1]:
            break
    return said


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_export_is_fused_and_writes_its_texts(tmp_path: Path, key: Path, name: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": f"t{5 + n} t{9 + n} t{2 + n}", "answer": f"t{3 + n} t{11 + n}"}
        for n in range(20)
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    bundle = tmp_path / "chat-1.0.0"
    words = ("--calibration", prompts, "--key", key, "-o", bundle)
    said = edgepack("build", EXPORTS / name, "--profile", "fp32", *words)
    assert "whose logits differ by" in said
    (variant,) = read_manifest(bundle).variants
    nodes = onnx.load(bundle / variant.folder / variant.model_file).graph.node
    kinds = [node.op_type for node in nodes]
    assert kinds.count("GroupQueryAttention") == 1
    assert len(nodes) * 5 < len(onnx.load(EXPORTS / name / "model.onnx").graph.node)
    install(bundle, key, tmp_path / "device")
    with open_model("chat", tmp_path / "device", threads=1) as model:
        prompt = " ".join(f"t{token}" for token in PROMPT)
        text = model.generate(prompt, max_tokens=TOKENS, temperature=0).whole()
    assert list(text.tokens) == _greedy(EXPORTS / name / "model.onnx")


def test_the_weights_of_gpt2_give_the_logits_of_its_export(tmp_path: Path) -> None:
    folder, export = tmp_path / "gpt2", EXPORTS / "gpt2" / "model.onnx"
    shutil.copytree(export.parent, folder, ignore=lambda *_: ["model.onnx"])
    stored = {
        one.name.removeprefix("transformer."): numpy_helper.to_array(one)
        for one in onnx.load(export).graph.initializer
        if one.name.startswith("transformer.")
    }
    stored["h.0.attn.bias"] = np.tril(np.ones((1, 1, 64, 64), np.float32))
    write_safetensors(folder / "model.safetensors", stored)
    source = open_decoder(folder, tmp_path / "work", silent)
    config = folder / "config.json"
    shape = read_shape(json.loads(config.read_text()), config, None)
    assert compare_logits(export, source.path, shape) < 1e-4
    assert {spec.name for spec in source.inputs} >= {"position_ids", "attention_mask"}
    del stored["h.0.mlp.c_fc.bias"], stored["ln_f.bias"]
    write_safetensors(folder / "model.safetensors", stored)
    with pytest.raises(BuildError, match=r"no tensor 'model\.norm\.bias'"):
        open_decoder(folder, tmp_path / "again", silent)


@pytest.mark.parametrize(
    ("settings", "because"),
    [
        ({"rope_theta": 50.0}, "the fused graph's logits differ by"),
        ({"intermediate_size": 64}, "the configuration means"),
        ({"hidden_act": "relu"}, "the activation 'relu' is not known"),
    ],
)
def test_an_export_that_is_in_doubt_stays_as_exported(
    tmp_path: Path, settings: dict[str, Any], because: str
) -> None:
    folder = tmp_path / "export"
    shutil.copytree(EXPORTS / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    source = open_decoder(folder, tmp_path / "work", silent)
    assert source.path == folder / "model.onnx"
    assert source.texts is not None
    assert not source.texts.is_built
    assert "It was not fused: " in source.notes[0]
    assert because in source.notes[0]
