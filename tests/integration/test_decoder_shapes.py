"""Decoders for hardware of fixed sizes, and texts that end with a table of positions."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.errors import BuildError
from edgepack.packager import build
from edgepack.packager.graph.model_files import open_on_cpu
from tests.unit.packager_decoders.drawn_decoder import (
    WIDTH,
    Feeds,
    draw_decoder,
    prompts,
    single_steps,
)


def _write(model: onnx.ModelProto, samples: list[Feeds], folder: Path) -> None:
    (folder / "samples").mkdir(exist_ok=True)
    for old in (folder / "samples").iterdir():
        old.unlink()
    for number, feeds in enumerate(samples):
        np.savez(folder / "samples" / f"{number:03}.npz", **feeds)  # type: ignore[arg-type]
    onnx.save(model, folder / "decoder.onnx")


_STEPS = 12


def _generate(path: Path, places: int | None) -> list[list[int]]:
    """Return a model's tokens after some tokens, with an application's inputs.

    Args:
        path: The model, on the CPU unchanged.
        places: Of its cache, where sizes are fixed; the place that the mask hides first is dropped.
    """
    session = open_on_cpu(path, optimize=False)
    names = [output.name for output in session.get_outputs()]
    texts = []
    for feeds in single_steps(4, places or 0, seed=3):
        said: list[int] = []
        while len(said) < _STEPS:
            outputs = dict(zip(names, session.run(None, feeds), strict=True))
            said.append(int(outputs["logits"][0, -1].argmax()))
            mask = feeds["attention_mask"]
            kept = 0 if places is None else 1  # the oldest place, still hidden
            feeds = {
                name: outputs[name.replace("past_key_values", "present")][:, :, kept:]
                for name in feeds
                if name.startswith("past")
            } | {
                "input_ids": np.array([[said[-1]]]),
                "attention_mask": np.append(mask[:, kept:], [[1]], axis=1),
                "position_ids": feeds["position_ids"] + 1,
            }
        texts.append(said)
    return texts


def test_the_sizes_that_are_proposed_for_a_cache_that_grows_give_a_graph_that_generates(
    tmp_path: Path, key: Path
) -> None:
    _write(draw_decoder(), prompts(20), tmp_path)
    given: dict[str, Any] = {"calibration": tmp_path / "samples", "key": key, "version": "1.0.0"}
    with pytest.raises(BuildError) as caught:
        build(tmp_path / "decoder.onnx", profiles=["qnn-htp"], output=tmp_path / "no", **given)
    remedy = caught.value.remedy or ""
    assert "the cache grows with each step" in remedy
    assert "such as cpu" in remedy
    words = [word for word in shlex.split(remedy.partition("  (")[0]) if word != "--shape"]
    shapes = {
        name: tuple(map(int, sizes.split(",")))
        for name, _, sizes in (word.partition("=") for word in words)
    }
    assert 0 not in shapes["past_key_values.0.key"], "an empty cache takes no second step"
    places = shapes["past_key_values.0.key"][2]
    assert shapes["attention_mask"] == (1, places + 1)
    _write(draw_decoder(), single_steps(20, places), tmp_path)
    result = build(
        tmp_path / "decoder.onnx",
        profiles=["qnn-htp"],
        shapes=shapes,
        output=tmp_path / "yes",
        **given,
    )
    assert any(note.startswith("A decoder: ") for note in result.report.notes), "two steps ran"
    variant = result.variants["qnn-htp"]
    assert variant.placement.verified, "it ran on the simulator"
    (built,) = (tmp_path / "yes").rglob("model/*/model.onnx")
    expected = _generate(tmp_path / "decoder.onnx", None)
    said = _generate(built, places)
    assert said == expected, "the built graph says what the float model says"


def test_a_decoder_without_a_mask_gets_no_sizes_for_its_cache(tmp_path: Path, key: Path) -> None:
    model = draw_decoder()
    samples = prompts(20)
    for value in model.graph.input:
        if value.name == "attention_mask":
            value.name = "seen"
    for node in model.graph.node:
        node.input[:] = ["seen" if name == "attention_mask" else name for name in node.input]
    for feeds in samples:
        feeds["seen"] = feeds.pop("attention_mask")
    _write(model, samples, tmp_path)
    with pytest.raises(BuildError) as caught:
        build(
            tmp_path / "decoder.onnx",
            profiles=["qnn-htp"],
            output=tmp_path / "no",
            calibration=tmp_path / "samples",
            key=key,
            version="1.0.0",
        )
    assert (caught.value.remedy or "").startswith("export the decoder with a cache of fixed size")
    assert "--shape" not in (caught.value.remedy or "")


def _with_own_positions(places: int) -> onnx.ModelProto:
    """Return a decoder that counts positions itself and has a table of so many."""
    model = draw_decoder()
    graph = model.graph
    graph.input.remove(next(value for value in graph.input if value.name == "position_ids"))
    by_output = {node.output[0]: node for node in graph.node}
    by_output["place"].input[1] = "query"
    late = ("place", "h0")
    order = [name for name in by_output if name not in late]
    order[order.index("query") + 1 : order.index("query") + 1] = late
    nodes = [onnx.NodeProto.FromString(by_output[name].SerializeToString()) for name in order]
    del graph.node[:]
    graph.node.extend(nodes)
    table = next(tensor for tensor in graph.initializer if tensor.name == "places")
    values = np.random.default_rng(3).normal(0, 0.1, (places, WIDTH)).astype(np.float32)
    table.CopyFrom(numpy_helper.from_array(values, "places"))
    return model


def test_a_decoder_that_counts_hidden_places_gets_no_sizes_for_its_cache(
    tmp_path: Path, key: Path
) -> None:
    samples = prompts(20)
    for feeds in samples:
        del feeds["position_ids"]
    _write(_with_own_positions(200), samples, tmp_path)
    with pytest.raises(BuildError) as caught:
        build(
            tmp_path / "decoder.onnx",
            profiles=["qnn-htp"],
            output=tmp_path / "no",
            calibration=tmp_path / "samples",
            key=key,
            version="1.0.0",
        )
    assert "--shape" not in (caught.value.remedy or ""), "each token would have the last position"
    assert "positions that do not count them" in (caught.value.remedy or "")


def test_a_text_that_edgepack_continues_ends_with_the_table_of_positions(
    tmp_path: Path, key: Path
) -> None:
    samples = prompts(40)
    for feeds in samples:
        del feeds["position_ids"]
    _write(_with_own_positions(20), samples, tmp_path)
    result = build(
        tmp_path / "decoder.onnx",
        profiles=["cpu"],
        calibration=tmp_path / "samples",
        key=key,
        version="1.0.0",
        output=tmp_path / "bundle",
    )
    assert any(note.startswith("A decoder: ") for note in result.report.notes)
    assert set(result.variants) == {"cpu"}
