"""Prompts with answers as samples: lines, tokens, templates."""

import codecs
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.progress import silent
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.samples.prompts import read_texts
from edgepack.packager.samples.texts import open_texts
from edgepack.packager.source.model import load_source
from tests.unit.packager_decoders.drawn_decoder import WORDS, draw_decoder
from tests.unit.packager_decoders.word_tokenizer import write_tokenizer

_GOOD = {"prompt": "w1 w2 w3", "answer": "w4 w5"}
_TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(draw_decoder(), tmp_path / "model.onnx")
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 8}')
    (tmp_path / "chat_template.jinja").write_text(_TEMPLATE)
    return tmp_path


def _open(folder: Path, *lines: object) -> OpenedSamples:
    path = folder / "prompts.jsonl"
    written = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(written))
    return open_texts(str(path), load_source(folder / "model.onnx"), silent)


def test_a_sample_is_the_whole_text_with_an_empty_cache(folder: Path) -> None:
    opened = _open(folder, _GOOD, "", _GOOD, {"prompt": "w9", "answer": "w8"})
    feeds = opened.samples.read(0)
    assert feeds["input_ids"].tolist() == [[1, 2, 3, 4, 5]]
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 1, 1]]
    assert feeds["position_ids"].tolist() == [[0, 1, 2, 3, 4]]
    assert feeds["past_key_values.0.key"].shape == (1, 4, 0, 16)
    assert [opened.samples.answer_tokens(index) for index in range(2)] == [2, 1]
    assert opened.samples.title(1).endswith("prompts.jsonl, line 4")
    assert "1 of the 3 prompts in prompts.jsonl repeats another one." in opened.notes


def test_messages_go_through_the_template_of_the_folder(folder: Path) -> None:
    messages = [{"role": "user", "content": "w7"}]
    opened = _open(folder, {"messages": messages, "answer": "w4"})
    assert opened.samples.read(0)["input_ids"].tolist() == [[WORDS - 2, 7, WORDS - 1, 4]]
    answer = {"role": "assistant", "content": "w4"}
    answered = _open(folder, {"messages": [*messages, answer]})
    assert answered.digests == opened.digests


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not a prompt with an answer"),
        ("[1]", "not a prompt with an answer"),
        ('{"prompt": 3, "answer": "w1"}', "Expected `str"),
        ('{"prompt": "w1"}', "answer is missing"),
        ('{"messages": [{"role": "user", "content": "w1"}]}', "answer is missing"),
        (
            '{"messages": [{"role": "assistant", "content": "w1"}], "answer": "w1"}',
            "there is an 'answer' besides",
        ),
        ('{"messages": [{"role": "assistant", "content": "w1"}]}', "no message comes before"),
        ('{"answer": "w1"}', "either 'prompt' or 'messages'"),
        ('{"messages": [], "answer": "w1"}', "either 'prompt' or 'messages'"),
        (
            '{"prompt": "w1", "messages": [{"role": "user", "content": "w1"}], "answer": "w1"}',
            "either 'prompt' or 'messages'",
        ),
        ('{"messages": [{"role": "user"}], "answer": "w1"}', "`content`"),
        ('{"prompt": "w1", "answer": ""}', "answer is missing or empty"),
        ('{"prompt": "w1", "anwser": "w1"}', "no key 'anwser'"),
        ('{"Prompt": "w1", "answer": "w1"}', "no key 'Prompt'"),
        ('{"message": [], "prompt_id": 3, "answer": "w1"}', "no key 'message'"),
        ('{"prompt": "w1", "answer": "  "}', "answer has no tokens"),
        (
            '{"prompt": "w1 w1 w1 w1 w1 w1", "answer": "w2 w2 w2"}',
            "have 9 tokens, the model reads 8",
        ),
        ("[" * 100_000, "not a prompt with an answer"),
        (
            '{"prompt": "' + "w" * 4_000_000 + '", "answer": "w1"}',
            "have 4,000,002 characters, at most 4,000,000 are read",
        ),
    ],
)
def test_a_bad_line_is_rejected_with_its_number(folder: Path, line: str, problem: str) -> None:
    with pytest.raises(BuildError, match="line 3") as caught:
        _open(folder, _GOOD, "", line)
    assert problem in str(caught.value)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_an_encoding_other_than_utf8_is_named(folder: Path, encoding: str) -> None:
    path = folder / "prompts.jsonl"
    path.write_bytes('{"prompt": "w1 é", "answer": "w2"}\n'.encode(encoding))
    with pytest.raises(BuildError, match="line 1") as caught:
        open_texts(str(path), load_source(folder / "model.onnx"), silent)
    assert caught.value.remedy == "save the file as UTF-8"


def test_a_tokenizer_of_another_model_is_rejected(folder: Path) -> None:
    write_tokenizer(folder, WORDS + 40)
    with pytest.raises(BuildError, match=f"token 135, the model's vocabulary has {WORDS}"):
        _open(folder, {"prompt": "assistant", "answer": "w1"})


def test_what_is_missing_in_the_folder_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(BuildError, match="need a chat template"):
        _open(folder, {"messages": [{"role": "user", "content": "w1"}], "answer": "w2"})
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(BuildError, match=r"tokenizer.json cannot be read"):
        _open(folder, _GOOD)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BuildError, match=r"need the model's tokenizer.json"):
        _open(folder, _GOOD)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "line 1",
        ),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "line 1"),
        ("{% include '/etc/passwd' %}", "chat template"),
        ("{% if %}", "chat template cannot be read"),
        ("{{ raise_exception('only users') }}", "only users"),
    ],
)
def test_a_template_that_loops_or_reads_files_is_rejected(
    folder: Path, template: str, problem: str
) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(EdgepackError, match=problem):
        _open(folder, {"messages": [{"role": "user", "content": "w7"}], "answer": "w4"})
    with pytest.raises(EdgepackError, match="chat template"):
        _open(folder, {"prompt": "w9", "answer": "w8"})


def test_a_mark_of_byte_order_is_no_part_of_the_first_line(folder: Path) -> None:
    path = folder / "marked.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + b'{"prompt": "w9", "answer": "w8"}')
    assert len(open_texts(str(path), load_source(folder / "model.onnx"), silent).samples) == 1


def test_an_empty_or_missing_file_is_rejected(folder: Path) -> None:
    with pytest.raises(BuildError, match="has 0 lines"):
        _open(folder, "", " ")
    with pytest.raises(BuildError, match="No such file"):
        open_texts(str(folder / "no.jsonl"), load_source(folder / "model.onnx"), silent)


def test_padding_and_truncation_of_a_tokenizer_do_not_count(folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=7)
    tokenizer.enable_truncation(2)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert _open(folder, _GOOD).samples.read(0)["input_ids"].tolist() == [[1, 2, 3, 4, 5]]


def test_a_model_with_other_inputs_is_rejected(folder: Path) -> None:
    model = draw_decoder()
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("speaker", onnx.TensorProto.INT64, [1])
    )
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(BuildError, match="do not fill input 'speaker'"):
        _open(folder, _GOOD)


def test_a_cache_of_open_head_size_has_the_size_that_the_folder_states(folder: Path) -> None:
    """Graphs of onnxruntime-genai's builder leave the size open."""
    model = draw_decoder()
    for value in model.graph.input[3:]:
        value.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
    onnx.save(model, folder / "model.onnx")
    (folder / "genai_config.json").write_text('{"model": {"decoder": {"head_size": 16}}}')
    assert _open(folder, _GOOD).samples.read(0)["past_key_values.0.key"].shape == (1, 4, 0, 16)


def test_tokens_have_the_type_of_the_input(folder: Path) -> None:
    assert _open(folder, _GOOD).samples.read(0)["input_ids"].dtype == np.int64


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": "w1", "anwser": "w2"}', "no key 'anwser'"),
        ('{"prompt": "w1", "answer": " "}', "the answer is empty"),
        ('{"answer": "w1"}', "the prompt is missing"),
    ],
)
def test_a_text_with_a_useless_answer_is_rejected(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"prompt": "w1", "answer": "w2", "answer_id": 3}\n{"prompt": "w1"}\n' + line)
    with pytest.raises(BuildError, match="line 3") as caught:
        read_texts(path)
    assert problem in str(caught.value)
