"""A decoder that edgepack builds from weights gives the logits of transformers.

`tests/huggingface/record_decoders.py` recorded these logits, in float32, with the same weights.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import open_on_cpu
from edgepack.packager.pipeline.variant_facts import requirements_of
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.progress import silent
from edgepack.packager.source.decoders.build import is_decoder_folder, open_decoder
from edgepack.packager.source.huggingface.folder import open_source
from edgepack.packager.source.model import SourceModel, load_source
from tests.huggingface.drawn_decoders import (
    CONFIGS,
    TOKENS,
    VOCABULARY,
    write_folder,
    write_tokenizer,
)

RECORDED = json.loads((Path(__file__).parents[2] / "huggingface/drawn.json").read_text())
SPLIT = 15
"""Tokens of the prompt, more than the windows of attention."""


def _open(folder: Path, **options: Any) -> SourceModel:
    return open_decoder(folder, folder.parent / "exported", silent, **options)


def _expected(name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    content = base64.b64decode(RECORDED["last_logits"][name])
    return np.frombuffer(content, np.float32).reshape(4, VOCABULARY)


def _empty_cache(source: SourceModel) -> dict[str, Any]:
    return {
        spec.name: np.zeros((1, int(spec.shape[1]), 0, int(spec.shape[3])), np.float32)
        for spec in source.inputs
        if spec.name.startswith("past_key_values")
    }


def _feed(session: Any, tokens: list[int], total: int, cache: dict[str, Any]) -> dict[str, Any]:
    feeds = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, total), np.int64)}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds | cache), strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    source = _open(write_folder(tmp_path / name, name))
    session = open_on_cpu(source.path)
    said = _feed(session, TOKENS[0], len(TOKENS[0]), _empty_cache(source))
    np.testing.assert_allclose(said["logits"][0, -4:], _expected(name), atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_text_over_the_cache_has_the_same_logits(tmp_path: Path, name: str) -> None:
    source = _open(write_folder(tmp_path / name, name))
    session = open_on_cpu(source.path)
    said = _feed(session, TOKENS[0][:SPLIT], SPLIT, _empty_cache(source))
    logits = []
    for place in range(SPLIT, len(TOKENS[0])):
        cache = {
            name.replace("present", "past_key_values"): value
            for name, value in said.items()
            if name != "logits"
        }
        said = _feed(session, [TOKENS[0][place]], place + 1, cache)
        logits.append(said["logits"][0, 0])
    np.testing.assert_allclose(np.stack(logits[-4:]), _expected(name), atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_weights_of_other_types_are_read(tmp_path: Path, dtype: str) -> None:
    source = _open(write_folder(tmp_path / "llama3", "llama3", dtype=dtype))
    said = _feed(open_on_cpu(source.path), TOKENS[0], len(TOKENS[0]), _empty_cache(source))
    np.testing.assert_allclose(said["logits"][0, -4:], _expected("llama3"), atol=1e-4)


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    graphs = {}
    for name in ("llama", "llama3"):
        source = _open(write_folder(tmp_path / name / name, name))
        graphs[name] = onnx.load(source.path, load_external_data=False).graph
    counts = {
        name: sum(
            VOCABULARY in tensor.dims for tensor in graph.initializer if len(tensor.dims) == 2
        )
        for name, graph in graphs.items()
    }
    assert counts["llama"] == counts["llama3"] + 1
    reader = [node for node in graphs["llama3"].node if "model.embed_tokens.weight" in node.input]
    assert [node.op_type for node in reader] == ["Gather", "FusedMatMul"]


def test_the_facts_for_texts_follow_from_the_configuration(tmp_path: Path) -> None:
    texts = _open(write_folder(tmp_path / "gemma2", "gemma2"), context=48).texts
    assert texts is not None
    assert (texts.context, texts.vocabulary) == (48, VOCABULARY)
    assert texts.cache_bytes_per_token == 2 * 2 * 2 * 16 * 4
    config = json.loads(texts.config_for("model/cpu/model.onnx"))
    assert config["model"]["decoder"]["filename"] == "model/cpu/model.onnx"
    assert config["model"]["eos_token_id"] == 1
    assert config["search"]["max_length"] == 48
    assert [file.name for file in texts.files] == ["tokenizer.json"]


def test_a_long_context_is_cut_where_other_rotary_factors_begin(tmp_path: Path) -> None:
    texts = _open(write_folder(tmp_path / "phi3", "phi3_longrope")).texts
    assert texts is not None
    assert texts.context == 32


def test_other_models_are_not_decoders_of_texts(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bert", "llama", architectures=["BertModel"])
    assert not is_decoder_folder(folder)
    assert not is_decoder_folder(folder / "config.json")
    (folder / "config.json").write_text("{")
    assert not is_decoder_folder(folder)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"max_position_embeddings": 0}, "`int` >= 1"),
        ({"num_key_value_heads": 3}, "4 heads share 3 keys"),
        ({"head_dim": 20}, "^a head has 20 values"),
        ({"vocab_size": 73}, r"has the shape \[72, 48\].* means \[73, 48\]"),
        ({"intermediate_size": 81}, r"has the shape \[48, 80\].* means \[48, 81\]"),
        ({"num_hidden_layers": 1}, "the weights have 9 tensors that a decoder of the kind llama"),
        ({"num_hidden_layers": 3}, "no tensor 'model.layers.2"),
        ({"tie_word_embeddings": False}, "no lm_head.weight"),
        ({"hidden_act": "relu6"}, "the activation 'relu6' is not known"),
        ({"rope_scaling": {"rope_type": "odd"}}, "of the kind 'odd'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "has no factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"are quantized \('gptq'\)"),
        ({"eos_token_id": 72}, "special token 72 is not in the vocabulary of 72 tokens"),
        ({"layer_types": ["full_attention"], "sliding_window": 4}, "1 types .* for 2 layers"),
    ],
)
def test_a_contradiction_is_an_error_with_its_numbers(
    tmp_path: Path, settings: dict[str, Any], problem: str
) -> None:
    folder = write_folder(tmp_path / "llama3", "llama3")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(BuildError, match=problem) as caught:
        _open(folder)
    assert caught.value.found_in is not None


def test_a_head_that_differs_from_tied_embeddings_is_an_error(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "llama", "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(BuildError, match=r"are tied, and 3,\d+ values of lm_head.weight differ"):
        _open(folder)


def test_a_tokenizer_with_more_tokens_than_the_model_is_an_error(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "llama", "llama")
    write_tokenizer(folder, 80)
    problem = "the tokenizer has 80 tokens with numbers up to 79, and the model's vocabulary has 72"
    with pytest.raises(BuildError, match=problem):
        _open(folder)


@pytest.mark.parametrize("content", ["", "[]", '{"model": {"vocab": {"a": -1}}}', '{"model": 3}'])
def test_a_tokenizer_that_is_none_is_an_error(tmp_path: Path, content: str) -> None:
    folder = write_folder(tmp_path / "llama", "llama")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(BuildError, match=r"tokenizer\.json is not a tokenizer"):
        _open(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BuildError, match=r"the folder has no tokenizer\.json"):
        _open(folder)


@pytest.mark.parametrize("context", [0, -1, 65])
def test_a_context_that_the_model_does_not_take_is_an_error(tmp_path: Path, context: int) -> None:
    folder = write_folder(tmp_path / "llama", "llama")
    with pytest.raises(BuildError, match=f"context of {context} tokens .* takes 1 to 64"):
        _open(folder, context=context)


def test_a_context_needs_a_decoder(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not a folder with a decoder"):
        open_source(tmp_path / "model.onnx", {}, {}, tmp_path / "work", silent, context=8)


def test_without_a_builder_for_the_architecture_the_error_names_the_packages(
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path / "odd", "llama", architectures=["OddForCausalLM"])
    with pytest.raises(BuildError, match="no builder for OddForCausalLM") as caught:
        _open(folder)
    assert "pip install onnxruntime-genai" in str(caught.value.remedy)


def test_the_folder_of_another_builder_is_taken_unchanged(tmp_path: Path) -> None:
    built = _open(write_folder(tmp_path / "llama", "llama"))
    assert built.texts is not None
    folder = tmp_path / "exported"
    (folder / "genai_config.json").write_bytes(built.texts.config_for("model.onnx"))
    write_tokenizer(folder, VOCABULARY)
    content = (folder / "model.onnx").read_bytes()
    taken = open_decoder(folder, tmp_path / "unused", silent)
    assert taken.path == folder / "model.onnx"
    assert taken.path.read_bytes() == content
    assert taken.texts is not None
    assert taken.texts.config == built.texts.config
    assert taken.texts.cache_bytes_per_token == built.texts.cache_bytes_per_token


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (("model", "decoder", "num_hidden_layers"), 3, "lacks 4 of the 14 tensors"),
        (("model", "decoder", "head_size"), 32, r"means 2 heads of 32 values"),
        (("model", "vocab_size"), 71, "logits of 72 tokens, and the vocabulary has 71"),
        (("model", "context_length"), 0, "`int` >= 1"),
        (("model", "decoder", "filename"), "../model.onnx", "is not in the folder"),
        (("model", "decoder"), None, "does not describe a decoder"),
    ],
)
def test_a_wiring_that_does_not_fit_its_graph_is_an_error(
    tmp_path: Path, place: tuple[str, ...], value: Any, problem: str
) -> None:
    built = _open(write_folder(tmp_path / "llama", "llama"))
    assert built.texts is not None
    folder = tmp_path / "exported"
    write_tokenizer(folder, VOCABULARY)
    document = json.loads(built.texts.config_for("model.onnx"))
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (folder / "genai_config.json").write_text(json.dumps(document))
    with pytest.raises(BuildError, match=problem):
        open_decoder(folder, tmp_path / "unused", silent)


def test_the_checker_passes_over_operators_of_onnxruntime_and_sees_other_flaws(
    tmp_path: Path,
) -> None:
    source = _open(write_folder(tmp_path / "llama", "llama"))
    assert not any("checker" in note for note in source.notes)
    model = onnx.load(source.path, load_external_data=False)
    model.graph.node[0].attribute.add(name="odd", type=onnx.AttributeProto.INT, i=1)
    source.path.write_bytes(model.SerializeToString())
    with pytest.raises(BuildError, match="Unrecognized attribute: odd for operator Gather"):
        load_source(source.path)


def _export_like_optimum(folder: Path, name: str, *, positions: bool) -> Path:
    """Write a folder with a graph, its configuration and its tokenizer, and no wiring."""
    source = _open(write_folder(folder.parent / name, name))
    model = onnx.load(source.path)
    if positions:
        value = onnx.helper.make_tensor_value_info("position_ids", onnx.TensorProto.INT64, [1, "n"])
        model.graph.input.append(value)
        model.graph.node.append(onnx.helper.make_node("Identity", ["position_ids"], ["unused"]))
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    write_tokenizer(folder, VOCABULARY)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    return folder


@pytest.mark.parametrize("positions", [False, True])
def test_an_export_without_wiring_gets_the_wiring_of_its_inputs(
    tmp_path: Path, positions: bool
) -> None:
    folder = _export_like_optimum(tmp_path / "optimum", "qwen3", positions=positions)
    assert is_decoder_folder(folder)
    source = open_decoder(folder, tmp_path / "unused", silent)
    assert source.path == folder / "model.onnx"
    assert source.texts is not None
    model = source.texts.config["model"]
    sizes = ("num_hidden_layers", "num_key_value_heads", "head_size")
    assert [model["decoder"][key] for key in sizes] == [2, 2, 16]
    assert ("position_ids" in model["decoder"]["inputs"]) == positions
    assert (model["context_length"], model["eos_token_id"]) == (64, 1)
    assert source.texts.config["search"]["past_present_share_buffer"] is True


def test_an_export_without_a_cache_is_an_error(tmp_path: Path) -> None:
    folder = _export_like_optimum(tmp_path / "optimum", "qwen3", positions=False)
    model = onnx.load(folder / "model.onnx")
    del model.graph.input[2:]
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(BuildError, match="has no cache: its inputs are input_ids, attention_mask"):
        open_decoder(folder, tmp_path / "unused", silent)


@pytest.mark.parametrize("value", [0, None, "64"])
def test_an_export_whose_configuration_lacks_a_size_is_an_error(
    tmp_path: Path, value: object
) -> None:
    folder = _export_like_optimum(tmp_path / "optimum", "qwen3", positions=False)
    config = CONFIGS["qwen3"] | {"max_position_embeddings": value}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BuildError, match="max_position_embeddings"):
        open_decoder(folder, tmp_path / "unused", silent)


def test_a_cache_of_the_size_of_its_window_is_an_error(tmp_path: Path) -> None:
    folder = _export_like_optimum(tmp_path / "optimum", "mistral", positions=False)
    model = onnx.load(folder / "model.onnx")
    attention = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    for node in attention:
        node.attribute.append(onnx.helper.make_attribute("sliding_window_cache", 1))
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(BuildError, match="2 layers of the decoder keep a cache of the size"):
        open_decoder(folder, tmp_path / "unused", silent)


@pytest.mark.parametrize(("name", "runtime"), [("mistral", ">=1.18,>=1.24"), ("llama", ">=1.18")])
def test_attention_with_a_window_needs_a_newer_runtime(
    tmp_path: Path, name: str, runtime: str
) -> None:
    """ONNX Runtime 1.23.2 gives other logits for a window, and 1.24.4 those of transformers."""
    source = _open(write_folder(tmp_path / name, name))
    profile = load_profile("fp32")
    assert requirements_of(profile, None, source.model).runtime == runtime
