"""Second moments X^T X of tensors over samples: GPTQ's facts of a product's inputs.

The moments are computed inside the graph and added up sample by sample, so memory depends on the
tensors' widths alone; if all of them together are too large, the samples are read again for each
part.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.memory import divide_by_size
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.calibration import observe
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Floats

Moments = Mapping[str, Floats]

_MOST_BYTES = 512 << 20


def parts_that_fit(widths: Mapping[str, int], most_bytes: int = _MOST_BYTES) -> list[list[str]]:
    """Divide tensors so that the moments of each part take at most so many bytes.

    Args:
        widths: Size of the last axis, by tensor.
        most_bytes: Room for a part; a tensor that alone needs more is a part by itself.
    """
    return divide_by_size(((name, 8 * width**2) for name, width in widths.items()), most_bytes)


def measure_moments(
    model: onnx.ModelProto,
    widths: Mapping[str, int],
    samples: Samples,
    *,
    work_dir: Path,
    progress: Progress,
) -> Moments:
    """Return the sum of x^T x over the rows of each tensor, over all samples.

    Args:
        model: The float model.
        widths: Size of the last axis, by tensor of the main graph.
        samples: Calibration samples.
        work_dir: Folder for the instrumented model.
        progress: Called for each sample.

    Returns:
        float64 (width, width), by tensor.

    Raises:
        BuildError: A sample does not run, or a tensor is not finite on a sample.
    """
    total = {name: np.zeros((width, width)) for name, width in widths.items()}
    names, path = [f"{name}/moments" for name in widths], work_dir / "moments.onnx"
    seen = observe(_instrument(model, widths), names, samples, path, progress, "second moments")
    for number, values in enumerate(seen, start=1):
        for name, value in zip(widths, values, strict=True):
            if not np.isfinite(value).all():
                raise BuildError(
                    f"tensor '{name}' is not finite on calibration sample {number}",
                    found_in=samples.source,
                    remedy="check the sample; if it is right, the float model overflows there",
                )
            total[name] += value
    return total


def _instrument(model: onnx.ModelProto, widths: Mapping[str, int]) -> onnx.ModelProto:
    copy = deepcopy(model)
    graph = copy.graph

    def add(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        graph.node.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    for name, width in widths.items():
        shape = np.array([-1, width], dtype=np.int64)
        graph.initializer.append(numpy_helper.from_array(shape, f"{name}/rows_shape"))
        rows = add("Reshape", [name, f"{name}/rows_shape"], f"{name}/rows")
        turned = add("Transpose", [rows], f"{name}/turned", perm=[1, 0])
        moments = add("MatMul", [turned, rows], f"{name}/moments")
        graph.output.append(helper.make_tensor_value_info(moments, TensorProto.FLOAT, [width] * 2))
    return copy
