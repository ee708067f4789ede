"""From a folder of sentence-transformers to vectors of texts, by Python and by OpenAI's client.

`tests/huggingface/record_encoders.py` made `encoders/bert`, and recorded the vectors that
sentence-transformers and transformers give.
"""

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from edgepack.agent import DeviceError, open_model
from edgepack.agent.serving import capture
from edgepack.agent.state.captured import CaptureSettings, captured_folder, switch_capture
from edgepack.bundle.chunks import entry
from edgepack.bundle.forms import read_manifest
from edgepack.bundle.keys import load_private_key
from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest, encode_manifest
from edgepack.bundle.signature import sign_folder
from tests.integration.picture_builds import edgepack, install
from tests.simulators.late_modules import late
from tests.simulators.model_server import ModelServer
from tests.simulators.ports import free_port

openai = late("openai")

FOLDER = Path(__file__).parents[1] / "huggingface" / "encoders" / "bert"
RECORDED = json.loads((FOLDER / "reference.json").read_text())
TEXTS = RECORDED["texts"]
VECTORS = np.array(RECORDED["vectors"]["normalized"], np.float32)
LONG = "no " * 60


def write_samples(folder: Path) -> Path:
    """Write tokens of texts as arrays."""
    folder.mkdir()
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    for number in range(24):
        ids = np.array([tokenizer.encode(TEXTS[number % len(TEXTS)] + " no" * number).ids])
        np.savez(
            folder / f"{number:02}.npz",
            allow_pickle=False,
            input_ids=ids,
            attention_mask=np.ones_like(ids),
            token_type_ids=np.zeros_like(ids),
        )
    return folder


@pytest.fixture(scope="module")
def built(key: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build a bundle with the command; return its folder, and that of the samples."""
    work = tmp_path_factory.mktemp("vectors")
    samples = write_samples(work / "samples")
    bundle = work / "sentences-1.0.0"
    edgepack(
        *("build", FOLDER / "model.onnx", "--name", "sentences", "--profile", "fp32"),
        *("--calibration", samples, "--key", key, "-o", bundle),
    )
    return bundle, samples


@pytest.fixture(scope="module")
def served(
    built: tuple[Path, Path], key: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ModelServer, str]]:
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    said = install(built[0], key, folder / "state")
    assert "6 golden texts have the build's tokens" in said
    server = ModelServer(folder, f'listen = "{port}"')
    server.start()
    yield server, f"http://127.0.0.1:{port}/v1"
    server.kill()


def test_the_bundle_states_pooling_and_length_under_the_signature(built: tuple[Path, Path]) -> None:
    text = read_manifest(built[0]).facts.description.text
    assert text is not None
    assert (text.pooling, text.normalize, text.max_tokens, text.dimensions) == (
        "mean",
        True,
        48,
        32,
    )
    assert (text.mask, text.types) == ("attention_mask", "token_type_ids")
    said = edgepack("inspect", built[0])
    assert "text of at most 48 tokens, for a vector of 32 values" in said
    assert (built[0] / "tokenizer.json").read_bytes() == (FOLDER / "tokenizer.json").read_bytes()
    statement = json.loads((built[0] / "provenance.json").read_text())
    names = {one["name"] for one in statement["subject"]}
    assert {"tokenizer.json", "golden_texts.json"} <= names


def test_vectors_are_those_of_sentence_transformers(served: tuple[ModelServer, str]) -> None:
    server, _ = served
    with open_model("sentences", server.state_dir, threads=1) as model:
        np.testing.assert_allclose(model.embed(TEXTS), VECTORS, atol=2e-6)
        one = model.embed(TEXTS[0])
        assert (one.dtype.name, one.shape) == ("float32", (32,))
        np.testing.assert_allclose(one, VECTORS[0], atol=2e-6)
        with model.session() as session:
            np.testing.assert_allclose(session.embed(TEXTS[1]), VECTORS[1], atol=2e-6)
        with pytest.raises(
            ValueError, match=r"text 1 of 2 does not fit: it has 62 tokens.*reads 48"
        ):
            model.embed(["no", LONG])
        for empty, words in (([], "there are no texts"), ("", "it is empty")):
            with pytest.raises(ValueError, match=words):
                model.embed(empty)
        others: tuple[Any, ...] = (None, 3, b"no", np.array(["no"]))
        for other in others:
            with pytest.raises(ValueError, match="give a text, a list of texts, or arrays"):
                model.embed(other)
        with pytest.raises(ValueError, match="writes no texts"):
            model.generate("Once")
    with open_model("sentences", server.state_dir, via="server") as model:
        np.testing.assert_allclose(model.embed(TEXTS), VECTORS, atol=2e-6)
        np.testing.assert_allclose(model.embed(TEXTS[2]), VECTORS[2], atol=2e-6)
        with pytest.raises(ValueError, match="the model reads 48"):
            model.embed(LONG)


def test_texts_are_captured_only_if_the_settings_name_the_encoder(
    served: tuple[ModelServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = served[0].state_dir
    monkeypatch.setattr(capture, "OFFER_S", 0.0)
    for texts, kept in (((), 0), (("sentences",), 1)):
        settings = CaptureSettings(samples=10, max_bytes=10**6, texts=texts)
        assert switch_capture(state_dir, settings) == ""
        with open_model("sentences", state_dir, threads=1) as model:
            model.embed("a secret")
            model._here().keeper.write()
        assert len(list(captured_folder(state_dir).glob("*.npz"))) == kept
    switch_capture(state_dir, CaptureSettings(samples=0, max_bytes=0))


def test_a_device_without_tokenizers_says_what_to_install_and_takes_arrays(
    served: tuple[ModelServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepack.agent.serving.opened.has_tokenizers", lambda: False)
    ids = np.array([[2, 5, 3]])
    feeds = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    with open_model("sentences", served[0].state_dir, threads=1) as model:
        with pytest.raises(DeviceError, match="need the package tokenizers") as caught:
            model.embed("no")
        assert "edgepack[generative]" in str(caught.value.remedy)
        assert model.run(feeds)["last_hidden_state"].shape == (1, 3, 32)


def test_openai_client_gets_vectors_and_understands_errors(
    served: tuple[ModelServer, str],
) -> None:
    with openai.OpenAI(base_url=served[1], api_key="none", max_retries=0) as client:
        assert [one.id for one in client.models.list()] == ["sentences"]
        for form in ("float", "base64", openai.NOT_GIVEN):
            answer = client.embeddings.create(
                model="sentences", input=TEXTS, encoding_format=form, dimensions=32
            )
            got = [one.embedding for one in answer.data]
            if form == "base64":
                got = [np.frombuffer(base64.b64decode(one), "<f4") for one in got]
            np.testing.assert_allclose(got, VECTORS, atol=2e-6)
            assert [one.index for one in answer.data] == list(range(len(TEXTS)))
            assert (
                answer.usage.prompt_tokens == answer.usage.total_tokens == sum(RECORDED["tokens"])
            )
        tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
        tokens = [tokenizer.encode(text).ids for text in TEXTS]
        for given, expected in (
            (TEXTS[0], VECTORS[:1]),
            (tokens[0], VECTORS[:1]),
            (tokens, VECTORS),
        ):
            answer = client.embeddings.create(model="sentences", input=given)
            np.testing.assert_allclose([one.embedding for one in answer.data], expected, atol=2e-6)
        for given, words in (
            (LONG, "text 0 of 1 does not fit: it has 62 tokens, the model reads 48"),
            (["no", ""], "text 1 of 2 does not fit: it is empty"),
            ([1, 2, 999], "its tokens are not all in 0 to 120"),
            ([], "input is a text, texts"),
            ([1, "no"], "input is a text, texts"),
            (["no"] * 2049, "at most 2048 texts, not 2049"),
        ):
            with pytest.raises(openai.BadRequestError, match=words) as caught:
                client.embeddings.create(model="sentences", input=given)
            assert caught.value.type == "invalid_request_error"
        with pytest.raises(openai.BadRequestError, match="gives 32 dimensions"):
            client.embeddings.create(model="sentences", input="no", dimensions=8)
        with pytest.raises(openai.NotFoundError, match="no model 'other'"):
            client.embeddings.create(model="other", input="no")
        with pytest.raises(openai.NotFoundError, match="'sentences' writes no texts"):
            client.completions.create(model="sentences", prompt="no")


def test_a_device_with_another_tokenization_rejects_the_bundle(
    built: tuple[Path, Path], key: Path, tmp_path: Path
) -> None:
    """A bundle whose golden texts were made by another tokenizer, signed by its owner."""
    folder = tmp_path / "copy"
    shutil.copytree(FOLDER, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    bundle = tmp_path / "other-1.0.0"
    edgepack(
        *("build", folder / "model.onnx", "--name", "sentences", "--profile", "fp32"),
        *("--calibration", built[1], "--key", key, "-o", bundle),
    )
    replace_file(bundle, key, "golden_texts.json", (built[0] / "golden_texts.json").read_bytes())
    with pytest.raises(AssertionError, match="has other tokens here than at the build"):
        install(bundle, key, tmp_path / "device")


def test_a_quantized_encoder_is_accepted_with_texts_that_calibrated_nothing(
    built: tuple[Path, Path], key: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "small-1.0.0"
    edgepack(
        *("build", FOLDER / "model.onnx", "--name", "small", "--profile", "cpu"),
        *("--prefer", "size", "--calibration", built[1], "--key", key, "-o", bundle),
    )
    assert read_manifest(bundle).variants[0].facts.precision != "fp32"
    assert "6 golden texts have the build's tokens" in install(bundle, key, tmp_path / "device")
    with open_model("small", tmp_path / "device", threads=1) as model:
        cosines = (model.embed(TEXTS) * VECTORS).sum(axis=1)
    assert cosines.min() > 0.99


def replace_file(bundle: Path, key: Path, name: str, content: bytes) -> None:
    """Write a file of a bundle, and sign the bundle again."""
    manifest = read_manifest(bundle)
    (bundle / name).write_bytes(content)
    files = tuple(entry(bundle, one.path) for one in manifest.facts.files)
    facts = msgspec.structs.replace(manifest.facts, files=files)
    manifest = Manifest(facts=facts, variants=manifest.variants)
    (bundle / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    (bundle / SIGNATURE_FILE).unlink()
    sign_folder(bundle, load_private_key(key))
