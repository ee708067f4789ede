"""A build needs memory for a few copies of the weights, for any number of forms of the model."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.bundle.keys import generate_key, write_key_pair

_WIDTH = 640
_FEW, _MANY = 2, 12
"""Layers of a model whose weights stay in memory, and of one whose weights do not."""

_WEIGHT_BYTES = (_MANY - _FEW) * _WIDTH * _WIDTH * 4
_MOST_COPIES = 6.0
"""Reading a model, checking it and writing it in one file take four copies for a moment.
Held in memory, the forms that a build has of a model came to ten."""

_PROFILE = """
[profile]
name = "searching"
extends = "vitisai-xint8"

[[pass]]
name = "quantize"
ranges = ["minmse"]
prepare = ["smooth"]
max_float_share = 0.2
"""

_CHILD = """
import resource, sys
from pathlib import Path
from edgepack.packager.pipeline.build import build_bundle as build
from edgepack.packager.progress import silent
from edgepack.packager.pipeline.request import BuildRequest

folder, model = Path(sys.argv[1]), Path(sys.argv[2])
build(
    BuildRequest(
        model=model,
        output=folder / f"{model.stem}-bundle",
        name="layers",
        version="1.0.0",
        release=1,
        profiles=(str(folder / "searching.toml"),),
        key=folder / "release.key",
        calibration="random:8",
        allow_degraded=True,
    ),
    silent,
)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def _layers(count: int) -> onnx.ModelProto:
    """Return matrix products, each followed by a Relu; of an old operator set."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for number in range(count):
        before = f"r{number - 1}" if number else "x"
        after = f"r{number}" if number < count - 1 else "y"
        nodes.append(helper.make_node("MatMul", [before, f"w{number}"], [f"h{number}"]))
        nodes.append(helper.make_node("Relu", [f"h{number}"], [after]))
        values = rng.standard_t(2, (_WIDTH, _WIDTH)).astype(np.float32) / np.float32(_WIDTH) ** 0.5
        weights.append(numpy_helper.from_array(values, f"w{number}"))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, _WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, _WIDTH])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _peak_bytes(folder: Path, layers: int) -> int:
    model = folder / f"layers-{layers}.onnx"
    model.write_bytes(_layers(layers).SerializeToString())
    ended = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder), str(model)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


def test_a_search_among_many_forms_of_a_model_holds_a_few_copies_of_its_weights(
    tmp_path: Path,
) -> None:
    write_key_pair(generate_key(), tmp_path / "release")
    (tmp_path / "searching.toml").write_text(_PROFILE)
    few, many = _peak_bytes(tmp_path, _FEW), _peak_bytes(tmp_path, _MANY)
    assert many - few < _MOST_COPIES * _WEIGHT_BYTES
