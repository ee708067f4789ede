"""Encoders: what folders state of pooling and length, against sentence-transformers' vectors."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edgepack.agent.generation.vectors import TextVectors, compare_texts
from edgepack.agent.runtime.opening import open_model_file
from edgepack.packager.progress import silent
from edgepack.packager.source.huggingface.folder import open_source

FOLDER = Path(__file__).parents[2] / "huggingface" / "encoders" / "bert"
RECORDED = json.loads((FOLDER / "reference.json").read_text())
TEXTS = RECORDED["texts"]
OLD_TYPES = "sentence_transformers.models."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "bert"))


def change(path: Path, **settings: object) -> None:
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(content | settings))


def state_modules(folder: Path, *kinds: str) -> None:
    rows = [
        {"idx": number, "path": f"{number}_{kind}" if number else "", "type": OLD_TYPES + kind}
        for number, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))


def open_folder(folder: Path, work: Path, **shapes: tuple[int, ...]) -> Any:
    return open_source(folder / "model.onnx", shapes, {}, work, silent)


def vectors_of(folder: Path, work: Path, **shapes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    source = open_folder(folder, work, **shapes)
    session = open_model_file(folder / "model.onnx", threads=1)
    tokenizer = source.encoder.tokenizer.read_bytes()
    vectors = TextVectors(source.encoder.described, source.inputs, tokenizer)
    golden = source.encoder.golden_texts(source.inputs, session.run)
    assert compare_texts(vectors, golden, session.run, least=0.999)[0]
    rows = []
    for text in TEXTS:
        tokens = vectors.tokens_of(text)
        outputs = session.run(vectors.feeds_of(tokens))
        rows.append(vectors.vector_of(outputs, len(tokens)))
    return np.stack(rows)


@pytest.mark.parametrize(
    "mode", ["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
)
def test_each_pooling_gives_the_vectors_of_sentence_transformers(
    folder: Path, tmp_path: Path, mode: str
) -> None:
    state_modules(folder, "Transformer", "Pooling")
    names = {"cls": "cls_token", "lasttoken": "lasttoken"}
    own = names.get(mode, f"{mode}_tokens" if "token" not in mode else mode)
    old = {"word_embedding_dimension": 32, f"pooling_mode_{own}": True}
    change(folder / "1_Pooling" / "config.json", pooling_mode=mode)
    expected = RECORDED["vectors"][mode]
    np.testing.assert_allclose(vectors_of(folder, tmp_path), expected, atol=5e-6)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(old))  # as releases before 5
    np.testing.assert_allclose(vectors_of(folder, tmp_path), expected, atol=5e-6)


def test_a_folder_without_pooling_gets_the_mean_of_all_tokens(folder: Path, tmp_path: Path) -> None:
    (folder / "modules.json").unlink()
    got = vectors_of(folder, tmp_path)
    np.testing.assert_allclose(got, RECORDED["transformers_mean"], atol=5e-6)
    source = open_folder(folder, tmp_path)
    assert "the mean of all tokens, since the folder states no pooling" in source.notes[-1]
    assert source.description.task_of("last_hidden_state") == "embedding"


def test_an_input_of_fixed_length_is_padded(folder: Path, tmp_path: Path) -> None:
    names = ("input_ids", "attention_mask", "token_type_ids")
    got = vectors_of(folder, tmp_path, **dict.fromkeys(names, (1, 40)))
    np.testing.assert_allclose(got, RECORDED["vectors"]["normalized"], atol=5e-6)


def test_a_model_below_onnx_has_the_folder_above(folder: Path, tmp_path: Path) -> None:
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    source = open_source(folder / "onnx" / "model.onnx", {}, {}, tmp_path, silent)
    assert source.encoder is not None
    assert source.encoder.described.normalize


def test_lengths_and_prompts_are_those_of_sentence_transformers(
    folder: Path, tmp_path: Path
) -> None:
    change(folder / "sentence_bert_config.json", max_seq_length=20)
    change(
        folder / "config_sentence_transformers.json",
        default_prompt_name="query",
        prompts={"query": "query: "},
    )
    described = open_folder(folder, tmp_path).encoder.described
    assert (described.max_tokens, described.prefix) == (20, "query: ")
    assert "text of at most 20 tokens behind 'query: ', for a vector" in described.words
    change(folder / "config.json", model_type="roberta", pad_token_id=1)
    change(folder / "sentence_bert_config.json", max_seq_length=512)
    assert open_folder(folder, tmp_path).encoder.described.max_tokens == 46


def test_encoders_that_devices_cannot_use_for_texts_are_named(folder: Path, tmp_path: Path) -> None:
    def said(change_folder: Any) -> str:
        copy = Path(shutil.copytree(folder, tmp_path / "copy"))
        change_folder(copy)
        source = open_folder(copy, tmp_path)
        shutil.rmtree(copy)
        assert source.encoder is None
        return str(source.notes[-1]) if source.notes else ""

    pooling = Path("1_Pooling") / "config.json"
    modules = ("Transformer", "Pooling", "Dense")
    assert "Transformer, Pooling, Dense" in said(lambda one: state_modules(one, *modules))
    assert "0 poolings" in said(lambda one: change(one / pooling, pooling_mode="cls+mean"))
    size = "is for 8 values, not 32"
    assert size in said(lambda one: change(one / pooling, embedding_dimension=8))
    lower = {"do_lower_case": True}
    case = "has do_lower_case"
    assert case in said(lambda one: change(one / "sentence_bert_config.json", **lower))
    few = "the tokenizer has 121 tokens up to 120, the model 50"
    assert few in said(lambda one: change(one / "config.json", vocab_size=50))
    broken = "modules.json cannot be read"
    assert broken in said(lambda one: (one / "modules.json").write_text("{"))
    assert "vectors" not in said(lambda one: (one / "tokenizer.json").unlink())


def test_golden_texts_without_a_limit_compare_tokens_alone(folder: Path, tmp_path: Path) -> None:
    source = open_folder(folder, tmp_path)
    session = open_model_file(folder / "model.onnx", threads=1)
    vectors = TextVectors(
        source.encoder.described, source.inputs, source.encoder.tokenizer.read_bytes()
    )
    golden = source.encoder.golden_texts(source.inputs, session.run)

    def spoiled(feeds: Any) -> Any:
        return {name: np.negative(value) for name, value in session.run(feeds).items()}

    right, because = compare_texts(vectors, golden, spoiled, least=None)
    assert right
    assert "vectors are not evaluated" in because
    wrong = [msgspec.structs.replace(golden[0], tokens=[*golden[0].tokens, 5])]
    assert not compare_texts(vectors, wrong, spoiled, least=None)[0]
    assert not compare_texts(vectors, golden, spoiled, least=0.99)[0]
