"""A decoder of texts on an NPU: fixed shapes, two graphs and one file of weights, from the command.

Qualcomm's simulator runs the graphs here; no chip was seen.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgepack.agent import open_model
from edgepack.agent.runtime.fixed_decoder import FixedDecoderSession
from edgepack.agent.runtime.opening import open_session
from edgepack.bundle.forms import read_manifest
from edgepack.bundle.manifest import FixedDecoder, Variant
from edgepack.errors import BundleError
from tests.integration.picture_builds import edgepack
from tests.simulators import warm_programs

FOLDER = Path(__file__).parents[1] / "huggingface" / "llama"
RECORDED = json.loads((FOLDER / "reference.json").read_text())["texts"]
QNN = "QNNExecutionProvider"
SIZES = {"layers": 3, "heads": 2, "head_size": 32, "context": 256, "vocabulary": 512}


@pytest.fixture(scope="module")
def bundle(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a bundle for an NPU with the command."""
    output = tmp_path_factory.mktemp("npu") / "chat-1.0.0"
    words = ("--calibration", FOLDER.with_name("prompts.jsonl"), "--key", key, "-o", output)
    edgepack("build", FOLDER, "--profile", "qnn-htp", *words)
    return output


@pytest.fixture(scope="module")
def variant(bundle: Path) -> Variant:
    (found,) = read_manifest(bundle).variants
    return found


@pytest.fixture(scope="module")
def config(bundle: Path, key: Path) -> Path:
    """Install the bundle on a device whose NPU is a simulator; return its settings."""
    config = bundle.parent / "agent.toml"
    config.write_text(
        f'device = "d"\nstate_dir = "state"\n[broker]\nurl = "mqtt://127.0.0.1:1"\n'
        f'[trust]\nkeys = ["{key.with_suffix(".pub")}"]\n'
        f'[probe]\nruns = 1\n[providers]\nallow_simulator = true\nwanted = "{QNN}"\n'
    )
    words = ("install", bundle, "--config", config, "--soak", "0")
    edgepack(*words, module="edgepack.agent.cli")
    return config


def test_both_graphs_have_fixed_shapes_and_share_their_weights(
    bundle: Path, variant: Variant
) -> None:
    facts = variant.facts.fixed_decoder
    assert facts is not None
    places = []
    for file, tokens in ((variant.model_file, 128), (facts.step_file, 1)):
        graph = onnx.load(bundle / variant.folder / file, load_external_data=False).graph
        inputs = {
            value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
            for value in graph.input
        }
        assert inputs.pop("input_ids") == inputs.pop("position_ids") == [1, tokens]
        assert inputs.pop("attention_bias") == [1, 1, tokens, SIZES["context"] + tokens]
        cache = [1, SIZES["heads"], SIZES["context"], SIZES["head_size"]]
        assert list(inputs.values()) == [cache] * 2 * SIZES["layers"]
        assert not {node.op_type for node in graph.node} & {"GroupQueryAttention", "MatMulNBits"}
        stored = {
            tensor.name: sorted((one.key, one.value) for one in tensor.external_data)
            for tensor in graph.initializer
            if tensor.external_data
        }
        places.append(stored)
    assert places[0] == places[1]
    assert sum(".Conv.weight" in name for name in places[0]) >= 7 * SIZES["layers"] + 1


def test_every_node_is_on_the_npu_and_the_texts_hold_their_budget(variant: Variant) -> None:
    placement = variant.facts.placement
    assert placement.verified
    assert placement.taken == placement.total > 500
    assert variant.provider_options["offload_graph_io_quantization"] == "0"
    assert variant.facts.precision == "a16w8"
    assert not variant.facts.degraded


def test_the_device_proves_both_graphs_and_chats_with_them(config: Path) -> None:
    shown = edgepack("explain", "chat", "--config", config, module="edgepack.agent.cli")
    assert f"qnn-htp on {QNN}" in shown
    assert "17 tokens over the cache are" in shown
    right = 0
    with open_model("chat", config.parent / "state", threads=1) as model:
        for text in RECORDED[:4]:
            said = model.generate(text["prompt"], max_tokens=20, temperature=0).whole()
            expected = text["greedy_tokens"][: len(said.tokens)]
            right += list(said.tokens) == expected
    assert right >= 3, "16-bit texts may differ where the float model hesitates"
    words = ("generate", "chat", "Tell me what cut does.", "--max-tokens", "4", "--json")
    answer = json.loads(edgepack(*words, "--config", config, module="edgepack.agent.cli"))
    assert answer["completion_tokens"] == 4


def test_a_long_text_runs_in_parts_behind_a_cache(bundle: Path, variant: Variant) -> None:
    session = open_session(bundle, variant)
    assert isinstance(session, FixedDecoderSession)
    tokens = np.array([RECORDED[7]["tokens"] * 3])[:, :180]
    heads, size = SIZES["heads"], SIZES["head_size"]
    empty = {one.name: np.zeros((1, heads, 0, size), np.float32) for one in session.inputs[2:]}
    whole = session.run({"input_ids": tokens, "attention_mask": np.ones_like(tokens), **empty})
    assert whole["logits"].shape == (1, 180, SIZES["vocabulary"])
    cache = {
        name: whole[name.replace("past_key_values", "present")][:, :, :170].copy() for name in empty
    }
    rest = {"input_ids": tokens[:, 170:], "attention_mask": np.ones_like(tokens), **cache}
    again = session.run(rest)["logits"][0]
    assert (again.argmax(-1) == whole["logits"][0, 170:].argmax(-1)).all()
    long = np.ones((1, 300), np.int64)
    feeds: dict[str, Any] = {"input_ids": long, "attention_mask": long, **empty}
    with pytest.raises(ValueError, match=r"0 \+ 300 tokens do not fit: the decoder takes .* 256"):
        session.run(feeds)
    graph, facts = session.graphs[128], FixedDecoder(step_file="step.onnx")
    with pytest.raises(BundleError, match="take 128 and 128 tokens"):
        FixedDecoderSession(graph, graph, facts)
    session.close()


def test_shapes_of_a_chat_are_refused_with_the_way_to_bound_it(key: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgepack.cli", "build", str(FOLDER), "--key", str(key)]
    command += [
        "--profile",
        "qnn-htp",
        "--shape",
        "input_ids=1,64",
        "-o",
        str(tmp_path / "c-1.0.0"),
    ]
    command += ["--calibration", str(FOLDER.with_name("prompts.jsonl"))]
    refused = warm_programs.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "--shape input_ids" in refused.stderr
    assert "--context TOKENS" in refused.stderr
