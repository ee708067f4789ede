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
import pytest

from edgepack.agent import open_model
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.errors import BuildError
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
        ({"num_beams": 40}, "beams"),
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
