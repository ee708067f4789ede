"""A classifier that goes wrong after the commit: an input lets it fail, give NaN or be slow,
as a device's own inputs may do. The model is right on its golden samples.
"""

from pathlib import Path

import numpy as np
import onnx

from tests.graphs import graph_model
from tests.simulators.building import build_archive

WIDTH = 64
CLASSES = 5
FAULTS = {"failed": 1, "not_finite": 2, "slow": 3}
SLOW_LAYERS = 3000


def weights() -> np.ndarray:
    """Return the matrix of the classifier, float32 (WIDTH, CLASSES)."""
    return np.random.default_rng(1).standard_normal((WIDTH, CLASSES)).astype(np.float32)


def classifier(slow_layers: int) -> onnx.ModelProto:
    """Return a classifier by a matrix; the input `fault` matters only with slow layers."""
    values: dict[str, np.ndarray] = {
        "weights": weights(),
        "same": np.eye(WIDTH, dtype=np.float32),
        "row": np.zeros((1, CLASSES), np.float32),
        "zero": np.zeros(1, np.float32),
        "one": np.ones(1, np.float32),
        **{name: np.array([n if slow_layers else -n]) for name, n in FAULTS.items()},
    }
    layers = max(slow_layers, 1)
    slow = " ".join(f"slow{n + 1} = MatMul(slow{n}, same)" for n in range(layers))
    branch = f"() => (float[1,{WIDTH}] {{}})"
    return graph_model(
        f"(float[1,{WIDTH}] x, int64[1] fault) => (float[1,{CLASSES}] y) {{ "
        "is_slow_row = Equal(fault, slow) is_slow = Squeeze(is_slow_row) passed = If<"
        f"then_branch = slow {branch.format(f'slow{layers}')} {{ slow0 = Identity(x) {slow} }}, "
        f"else_branch = fast {branch.format('as')} {{ as = Identity(x) }}>(is_slow) "
        "[classify] scores = MatMul(passed, weights) fails = Equal(fault, failed) "
        f"index = Cast<to={onnx.TensorProto.INT64}>(fails) nothing = Gather<axis=0>(row, index) "
        "added = Add(scores, nothing) is_nan = Equal(fault, not_finite) "
        "factor = Where(is_nan, zero, one) quotient = Div(factor, factor) "
        "logits = Mul(added, quotient) [decide] y = Softmax<axis=-1>(logits) }",
        values,
    )


def build(folder: Path, key: Path, number: int, slow_layers: int = SLOW_LAYERS) -> Path:
    folder.mkdir(exist_ok=True)
    model, samples = folder / f"model-{number}.onnx", folder / "samples.npz"
    onnx.save(classifier(slow_layers if number else 0), model)
    x = np.random.default_rng(0).standard_normal((100, WIDTH)).astype(np.float32)
    np.savez(samples, x=x, fault=np.zeros(100, np.int64))
    return build_archive(model, samples, key, folder / f"shapes-1.{number}.0.edgepack")
