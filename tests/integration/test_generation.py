"""Texts of an encoder and a decoder with a cache, by the rules of `generation_config.json`.

`tests/huggingface/encoder_decoders/marian` is a translator with a cache, and `generation.json` has
texts of transformers' `generate` by several settings (`tests/huggingface/record_generation.py`).
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from edgepack.agent import open_model
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.errors import BuildError
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.stages.build import build_pipeline
from edgepack.packager.stages.float_pipeline import FloatPipeline
from edgepack.packager.stages.pipeline_file import read_pipeline
from tests.integration.picture_builds import edgepack, install

FOLDER = Path(__file__).parents[1] / "huggingface" / "encoder_decoders" / "marian"
RECORDED: list[dict[str, Any]] = json.loads((FOLDER.parent / "generation.json").read_text())
CACHED = "decoder_with_past_model.onnx"


def prompt(number: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return the prompt of `record_generation.py`."""
    places = range(3 + number % 6)
    words = [1 + (number * 7 + 5 * place * place + place) % 24 for place in places]
    ids = np.array([[*words, 0]])
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def copy_folder(parent: Path, settings: dict[str, Any]) -> Path:
    folder = shutil.copytree(FOLDER, parent / "marian")
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("is_cached", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_texts_are_those_of_generate(tmp_path: Path, number: int, *, is_cached: bool) -> None:
    recorded = RECORDED[number]
    folder = copy_folder(tmp_path, recorded["settings"])
    if not is_cached:
        (folder / CACHED).unlink()
    session = FloatPipeline(read_pipeline(folder)).session
    texts = [session.run(prompt(place))["tokens"].tolist()[0] for place in range(8)]
    assert texts == recorded["texts"]


def test_bundle_continues_texts_by_its_cache(tmp_path: Path, key: Path) -> None:
    recorded = RECORDED[2]
    folder = copy_folder(tmp_path, recorded["settings"])
    samples = tmp_path / "prompts"
    samples.mkdir()
    for number in range(12):
        (samples / f"{number:02}.npz").write_bytes(encode_arrays(prompt(number)))
    bundle = tmp_path / "translator-1.0.0"
    edgepack(
        *("build", folder, "--profile", "cpu", "--profile", "fp32", "--calibration", samples),
        *("--key", key, "-o", bundle),
    )
    stages = json.loads((tmp_path / "translator-1.0.0.report.json").read_text())["variants"]
    assert {one.split(":")[0] for one in stages[0]["recipe"]} == {
        "encoder",
        "decoder",
        "decoder-with-cache",
    }
    install(bundle, key, tmp_path / "state")
    with open_model("translator", tmp_path / "state", threads=1) as model:
        texts = [model.run(prompt(place))["tokens"].tolist()[0] for place in range(8)]
    kept = sum(text == expected for text, expected in zip(texts, recorded["texts"], strict=True))
    assert kept >= 7, texts  # The selected variant may be quantized.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_beam_groups": 2}, "num_beam_groups is 2"),
        ({"do_sample": True}, "do_sample is True"),
        ({"num_beams": 40}, r"num_beams must be <= 16\n.*generation_config.json, num_beams"),
        ({"num_return_sequences": 3}, "num_return_sequences is 3"),
        ({"stop_strings": ["."]}, "stop_strings is"),
        ({"max_length": 0}, "max_length is 0"),
        ({"bad_words_ids": [[3], [4, 999]]}, "the token 999 that it never has"),
        ({"forced_eos_token_id": 999}, "the token 999 at its end"),
        ({"eos_token_id": []}, r"eos_token_id is \[\]"),
    ],
)
def test_rules_that_a_device_does_not_follow_are_rejected(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    folder = copy_folder(tmp_path, {**RECORDED[0]["settings"], **settings})
    with pytest.raises(BuildError, match=words):
        read_pipeline(folder)


def test_decoders_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    folder = copy_folder(tmp_path, RECORDED[0]["settings"])
    shutil.copy(FOLDER / "encoder_model.onnx", folder / CACHED)
    with pytest.raises(BuildError, match="do not fit each other"):
        read_pipeline(folder)


def test_cache_of_another_model_is_rejected(tmp_path: Path, key: Path) -> None:
    folder = copy_folder(tmp_path, RECORDED[0]["settings"])
    graph = onnx.load(folder / CACHED)
    weights = max(graph.graph.initializer, key=lambda one: len(one.raw_data))
    other = np.random.default_rng(5).standard_normal(tuple(weights.dims)).astype(np.float32)
    weights.CopyFrom(onnx.numpy_helper.from_array(other, weights.name))
    onnx.save(graph, folder / CACHED)
    samples = tmp_path / "prompts"
    samples.mkdir()
    for number in range(4):
        (samples / f"{number}.npz").write_bytes(encode_arrays(prompt(number)))
    output = tmp_path / "translator-1.0.0"
    request = BuildRequest(
        model=folder,
        output=output,
        name="translator",
        version="1.0.0",
        release=1_000_000,
        profiles=("fp32",),
        key=key,
        calibration=str(samples),
    )
    with pytest.raises(BuildError, match="'decoder-with-cache' does not continue the texts"):
        build_pipeline(folder, request, lambda _: None)
    assert not output.exists()


def write_file(folder: Path, loop: str, inputs: str = "") -> Path:
    """Write a pipeline's file for the translator's graphs."""
    names = [(layer, kind) for layer in range(2) for kind in ("key", "value")]
    first = {
        f"past_key_values.{layer}.{half}.{kind}": f"present.{layer}.{half}.{kind}"
        for layer, kind in names
        for half in ("encoder", "decoder")
    }
    grown = {name: made for name, made in first.items() if ".decoder." in name}
    states = [
        ", ".join(f'"{name}" = "{made}"' for name, made in one.items()) for one in (first, grown)
    ]
    mask = 'encoder_attention_mask = "attention_mask"'
    path = folder / "pipeline.toml"
    path.write_text(f"""
[pipeline]
task = "text"
outputs = ["text"]
[inputs.input_ids]
kind = "tensor"
dtype = "int64"
shape = [1, "tokens"]
[inputs.attention_mask]
kind = "tensor"
dtype = "int64"
shape = [1, "tokens"]
[[stage]]
name = "encoder"
model = "encoder_model.onnx"
[[stage]]
name = "decoder"
model = "decoder_model.onnx"
inputs = {{ {mask}, encoder_hidden_states = "last_hidden_state"{inputs} }}
outputs = {{ logits = "text" }}
[stage.loop]
tokens = "input_ids"
start = [1]
end = [0]
{loop}
[stage.loop.cache]
stage = "more"
first = {{ {states[0]} }}
next = {{ {states[1]} }}
[[stage]]
name = "more"
model = "{CACHED}"
inputs = {{ {mask} }}
outputs = {{}}
""")
    return path


def test_caches_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    folder = copy_folder(tmp_path, RECORDED[0]["settings"])
    path = write_file(folder, "")
    FloatPipeline(read_pipeline(path)).check_caches([prompt(0)])
    whole = path.read_text()
    path.write_text(whole.replace('"present.0.decoder.key"', '"present.9.decoder.key"', 1))
    with pytest.raises(BuildError, match=r"'decoder' has no output 'present\.9\.decoder\.key'"):
        read_pipeline(path)
    write_file(folder, "", ', input_ids = "input_ids"')
    with pytest.raises(BuildError, match="input 'input_ids' of stage 'decoder' is given twice"):
        read_pipeline(path)
    write_file(folder, "beams = 3")
    graph = onnx.load(folder / "decoder_model.onnx")
    (tokens,) = (one for one in graph.graph.input if one.name == "input_ids")
    tokens.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(graph, folder / "decoder_model.onnx")
    with pytest.raises(
        BuildError, match="follows 3 texts at a time, and input 'input_ids' takes 1"
    ):
        read_pipeline(path)
