"""Folders of Optimum with an encoder and a decoder, from the build to texts on a device.

`tests/huggingface/encoder_decoders` has a T5 and a Whisper with drawn weights, exported by
optimum-onnx 0.1.0. `recorded.json` has the tokens that Optimum's own loop writes for the samples
below, at most 12 new ones, the likeliest each time.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edgepack.agent import open_model
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.errors import BuildError
from edgepack.packager.stages.pipeline_file import find_pipeline, read_pipeline
from tests.integration.picture_builds import edgepack, install
from tests.simulators import warm_programs
from tests.simulators.model_server import ModelServer

_PACKAGE_READER = Path(__file__).parents[1] / "unit" / "bundle" / "open_with_onnxruntime.py"
FOLDERS = Path(__file__).parents[1] / "huggingface" / "encoder_decoders"
RECORDED = json.loads((FOLDERS / "recorded.json").read_text())

Feeds = dict[str, npt.NDArray[np.generic]]


def draw_sample(name: str, number: int) -> Feeds:
    """Return a prompt of tokens, or features of sound."""
    if name == "t5":
        places = range(4 + number)
        ids = np.array([[2 + (number * 7 + 5 * k * k + k) % 44 for k in places]])
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    wave = np.sin(np.arange(80 * 3000) * (0.01 + 0.003 * number)).astype(np.float32)
    return {"input_features": wave.reshape(1, 80, 3000) * np.float32(1 + number % 3)}


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    """Return the state folder of a device with both models."""
    folder = tmp_path_factory.mktemp("texts")
    for name, texts in RECORDED.items():
        samples = folder / f"{name}-samples"
        samples.mkdir()
        for number in range(len(texts)):
            content = encode_arrays(draw_sample(name, number))
            (samples / f"{number}.npz").write_bytes(content)
        bundle = folder / f"{name}-1.0.0"
        edgepack(
            *("build", FOLDERS / name, "--profile", "fp32", "--calibration", samples),
            *("--key", key, "-o", bundle),
        )
        install(bundle, key, folder / "state")
    return folder / "state"


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_texts_are_those_of_optimum(device: Path, name: str) -> None:
    with open_model(name, device, threads=1) as model:
        texts = [model.run(draw_sample(name, number))["tokens"] for number in range(9)]
    start = [] if name == "t5" else [2]  # Optimum leaves the start out of Whisper's texts.
    assert [text.tolist()[0] for text in texts] == [start + text for text in RECORDED[name]]


def test_model_server_writes_a_text(device: Path) -> None:
    server = ModelServer(device.parent)
    server.start()
    feeds = draw_sample("t5", 3)
    asked = {
        "inputs": [
            {
                "name": name,
                "datatype": "INT64",
                "shape": list(one.shape),
                "data": one.ravel().tolist(),
            }
            for name, one in feeds.items()
        ]
    }
    told = server.ask("POST", "/v2/models/t5/infer", json.dumps(asked).encode()).value
    assert server.stop() == 0, server.said()
    (tokens,) = told["outputs"]
    assert (tokens["name"], tokens["datatype"]) == ("tokens", "INT64")
    assert tokens["data"] == RECORDED["t5"][3]


def test_stock_tools_read_the_bundle(device: Path, key: Path) -> None:
    folder = device.parent / "t5-1.0.0"
    for stage, inputs in (("encoder", 2), ("decoder", 3)):
        done = subprocess.run(
            [sys.executable, _PACKAGE_READER, str(folder), stage], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["providers"] == {"fp32": "CPUExecutionProvider"}
        assert (told["chosen"], told["input_count"]) == ("fp32", inputs)
    tool = Path(sys.executable).with_name("model_signing")
    signature = folder / "model.sig"
    words = ("verify", "key", folder, "--signature", signature, "--ignore-paths", signature)
    done = warm_programs.run(
        (tool, *words, "--public_key", key.with_suffix(".pub")), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_text_without_tokens_is_rejected(device: Path) -> None:
    empty = np.zeros((1, 0), np.int64)
    with (
        open_model("t5", device, threads=1) as model,
        pytest.raises(ValueError, match=r"'input_ids' has shape \[1, 0\], which has no values"),
    ):
        model.run({"input_ids": empty, "attention_mask": empty})


@pytest.mark.parametrize("key", ["decoder_start_token_id", "eos_token_id"])
def test_token_beyond_the_vocabulary_is_rejected(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "t5"
    shutil.copytree(FOLDERS / "t5", folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {key: 48}))
    with pytest.raises(BuildError, match=r"48.* has 48 classes: 0 to 47") as caught:
        read_pipeline(folder, folder)
    assert "stage 'decoder'" in str(caught.value)
    assert key in str(caught.value)


def test_decoder_with_another_vocabulary_is_rejected(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDERS / "t5", tmp_path / "t5")
    shutil.copy(FOLDERS / "t5-drawn" / "decoder_model.onnx", folder)
    with pytest.raises(BuildError, match="scores 32 tokens, and the vocabulary has 48") as caught:
        read_pipeline(folder, folder)
    assert caught.value.found_in == str(folder / "config.json")


@pytest.mark.parametrize("name", ["encoder_model.onnx", "decoder_model.onnx", "config.json"])
def test_incomplete_folder_names_the_missing_file(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "t5"
    shutil.copytree(FOLDERS / "t5", folder)
    (folder / name).unlink()
    with pytest.raises(BuildError, match=f"lacks {name}"):
        find_pipeline(folder)


def test_folders_that_cannot_be_repeated_are_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "t5"
    shutil.copytree(FOLDERS / "t5", folder)
    (folder / "generation_config.json").write_text("{}")
    settings = json.loads((folder / "config.json").read_text())
    del settings["eos_token_id"]
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(BuildError, match="eos_token_id is None"):
        read_pipeline(folder, folder)
    shutil.copy(folder / "encoder_model.onnx", folder / "decoder_model.onnx")
    shutil.copy(FOLDERS / "t5" / "generation_config.json", folder)
    with pytest.raises(BuildError, match="the decoder takes input_ids, attention_mask"):
        read_pipeline(folder, folder)
