"""A decoder with fixed shapes gives the logits of transformers, token by token or at once."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from edgepack.agent.generation.fixed_decoding import open_decoding
from edgepack.agent.generation.wiring import read_wiring
from edgepack.agent.runtime.fixed_decoder import FixedCache, FixedDecoderSession
from edgepack.agent.runtime.opening import open_model_file
from edgepack.bundle.manifest import FixedDecoder
from edgepack.errors import BuildError
from edgepack.packager.progress import silent
from edgepack.packager.source.decoders.build import open_decoder
from edgepack.packager.source.decoders.fixed import (
    MOST_CONTEXT,
    check_fixed,
    open_fixed,
    with_single_step,
)
from tests.huggingface.drawn_decoders import CONFIGS, TOKENS, VOCABULARY, write_folder

RECORDED = json.loads((Path(__file__).parents[2] / "huggingface/drawn.json").read_text())
SPLIT = 15
"""Tokens of the prompt, more than the windows of attention."""


def _open(work: Path, name: str) -> FixedDecoderSession:
    folder = write_folder(work / name, name)
    source = replace(open_decoder(folder, work / "open", silent), folder=folder)
    fixed, sizes = open_fixed(source, work / "fixed", silent)
    step = onnx.load(fixed.path, load_external_data=False)
    with_single_step(step, sizes)
    onnx.save(step, fixed.path.with_name("step.onnx"))
    graphs = [open_model_file(fixed.path.with_name(file)) for file in ("model.onnx", "step.onnx")]
    facts = FixedDecoder(step_file="step.onnx", window=sizes.window)
    return FixedDecoderSession(graphs[0], graphs[1], facts)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    content = base64.b64decode(RECORDED["last_logits"][name])
    expected = np.frombuffer(content, np.float32).reshape(4, VOCABULARY)
    session, tokens = _open(tmp_path, name), TOKENS[0]
    cache = FixedCache(session)
    single = [cache.feed(tokens[:SPLIT])]
    single += [cache.feed([token]) for token in tokens[SPLIT:]]
    got = np.concatenate(single)[-4:].astype(np.float32)
    np.testing.assert_allclose(got, expected, atol=1e-4, rtol=1e-3)
    row = np.array([tokens])
    feeds: dict[str, Any] = {
        one.name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32)
        for one in session.inputs
        if len(one.shape) == 4
    }
    feeds |= {"input_ids": row, "attention_mask": np.ones_like(row)}
    whole = session.run(feeds)["logits"][0, -4:].astype(np.float32)
    np.testing.assert_allclose(whole, expected, atol=1e-4, rtol=1e-3)


def test_a_text_continues_a_kept_beginning(tmp_path: Path) -> None:
    session, tokens = _open(tmp_path, "gemma2"), TOKENS[0]
    source = open_decoder(tmp_path / "gemma2", tmp_path / "again", silent)
    assert source.texts is not None
    wiring = read_wiring(source.texts.config_for("model.onnx"))
    first, second = (open_decoding(session, wiring, len(tokens)) for _ in range(2))
    first.feed(tokens[:SPLIT])
    second.take_cache(first.copy_cache(SPLIT), SPLIT)
    expected, got = (one.feed(tokens[SPLIT:]) for one in (first, second))
    np.testing.assert_array_equal(got, expected)


def test_an_export_and_a_long_context_are_refused_with_the_remedy(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "llama", "llama")
    source = open_decoder(folder, tmp_path / "open", silent)
    assert source.texts is not None
    exported = replace(source, texts=replace(source.texts, is_built=False))
    with pytest.raises(BuildError, match="grows with each token") as caught:
        check_fixed(exported, "qnn-htp")
    assert "the folder of the weights" in str(caught.value.remedy)
    assert "--shape" not in str(caught.value.remedy)
    long = replace(source, texts=replace(source.texts, context=MOST_CONTEXT + 1))
    with pytest.raises(BuildError, match=f"context of {MOST_CONTEXT + 1} tokens") as caught:
        check_fixed(long, "qnn-htp")
    assert "--context 4096" in str(caught.value.remedy)
