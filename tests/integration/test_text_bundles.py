"""From a Hugging Face folder to an installed slot that gives the texts of transformers.

`tests/huggingface/record_decoders.py` trained `llama` and recorded its logits and greedy texts.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from edgepack.bundle.forms import read_manifest
from tests.integration.picture_builds import edgepack, install
from tests.simulators import warm_programs

FOLDER = Path(__file__).parents[1] / "huggingface" / "llama"
RECORDED = json.loads((FOLDER / "reference.json").read_text())["texts"]
HEADS, HEAD_SIZE, LAYERS = 2, 32, 3
END_TOKENS = (2, 0)

_GENAI = """
import json, sys
import onnxruntime_genai as genai
model = genai.Model(sys.argv[1])
parameters = genai.GeneratorParams(model)
parameters.set_search_options(max_length=256, do_sample=False)
generator = genai.Generator(model, parameters)
tokens = json.loads(sys.argv[2])
generator.append_tokens(tokens)
while not generator.is_done() and len(generator.get_sequence(0)) < len(tokens) + 40:
    generator.generate_next_token()
print(json.dumps([int(token) for token in generator.get_sequence(0)][len(tokens):]))
"""


def _cache() -> dict[str, Any]:
    return {
        f"past_key_values.{layer}.{part}": np.zeros((1, HEADS, 0, HEAD_SIZE), np.float32)
        for layer in range(LAYERS)
        for part in ("key", "value")
    }


def _write_samples(folder: Path) -> Path:
    """Write texts as arrays, with an empty cache."""
    folder.mkdir()
    for number, text in enumerate(RECORDED):
        tokens = np.array([text["tokens"] + text["greedy_tokens"]])
        np.savez(
            folder / f"{number:02}.npz",
            allow_pickle=False,
            input_ids=tokens,
            attention_mask=np.ones_like(tokens),
            **_cache(),
        )
    return folder


@pytest.fixture(scope="module")
def slot(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and install a bundle with the commands; return the slot."""
    work = tmp_path_factory.mktemp("texts")
    bundle = work / "chat-1.0.0"
    edgepack(
        *("build", FOLDER, "--profile", "fp32", "--calibration", _write_samples(work / "samples")),
        *("--key", key, "-o", bundle),
    )
    said = edgepack("inspect", bundle)
    assert "context 256 tokens, vocabulary 512, cache 1.5 KB a token, 393.2 KB when full" in said
    assert "tokenizer.json" in said
    install(bundle, key, work / "device")
    (found,) = (path.parent for path in (work / "device").rglob("genai_config.json"))
    return found


def test_the_slot_has_the_tokenizer_and_the_wiring(slot: Path) -> None:
    generation = read_manifest(slot).facts.generation
    assert generation is not None
    assert (generation.context, generation.vocabulary) == (256, 512)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (slot / name).read_bytes() == (FOLDER / name).read_bytes()
    config = json.loads((slot / "genai_config.json").read_text())["model"]
    assert (slot / config["decoder"]["filename"]).is_file()
    assert tuple(config["eos_token_id"]) == END_TOKENS
    bill = json.loads((slot.parent / slot.name / "manifest.json").read_text())
    listed = {each["path"] for each in bill["additional_metadata"]["edgepack"]["files"]}
    assert {"genai_config.json", "tokenizer.json"} <= listed


def test_the_installed_model_writes_the_texts_of_transformers(slot: Path) -> None:
    config = json.loads((slot / "genai_config.json").read_text())["model"]
    session = onnxruntime.InferenceSession(slot / config["decoder"]["filename"])
    names = [output.name for output in session.get_outputs()]
    for text in RECORDED:
        tokens, cache, length = text["tokens"], _cache(), 0
        said: list[int] = []
        while len(said) < len(text["greedy_tokens"]):
            length += len(tokens)
            mask = np.ones((1, length), np.int64)
            feeds = {"input_ids": np.array([tokens]), "attention_mask": mask, **cache}
            outputs = dict(zip(names, session.run(names, feeds), strict=True))
            logits = outputs.pop("logits")[0]
            if not said:
                expected = np.frombuffer(base64.b64decode(text["last_logits"]), np.float32)
                np.testing.assert_allclose(logits[-1], expected, atol=1e-3)
                assert logits.argmax(-1).tolist() == text["likeliest"]
            tokens = [int(logits[-1].argmax())]
            said += tokens
            cache = {k.replace("present", "past_key_values"): v for k, v in outputs.items()}
        assert said == text["greedy_tokens"]


def test_onnxruntime_genai_opens_the_slot(slot: Path) -> None:
    for text in RECORDED[:3]:
        command = [sys.executable, "-P", "-c", _GENAI, str(slot), json.dumps(text["tokens"])]
        done = warm_programs.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        expected = [token for token in text["greedy_tokens"] if token not in END_TOKENS]
        assert json.loads(done.stdout) == expected, "onnxruntime-genai leaves out the end token"
