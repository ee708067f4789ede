"""Products in a row, built for `cpu`: the smallest model whose search can go on and on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.tensors.sequence import SampleSplit
from tests.unit.packager_passes.models import make_model, samples_for, weight
from tests.unit.packager_passes.preparing import prepare


def prepare_products(
    folder: Path,
    *,
    count: int,
    max_float_share: float = 1.0,
    float_instead: Sequence[str] = (),
    profile: str = "cpu",
    **options: Any,
) -> PreparedVariant:
    """The variant of a model of `count` products, with an accuracy budget that all hold."""
    names = ["x", *(f"h{i}" for i in range(1, count)), "y"]
    model = make_model(
        [
            helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]], name=f"product_{i}")
            for i in range(count)
        ],
        {"x": [1, 8]},
        {"y": [1, 8]},
        [weight(f"w{i}", 8, 8, seed=i) for i in range(count)],
    )
    onnx.save(model, folder / "model.onnx")
    samples = samples_for(model, 45)
    gates = {
        "float_instead": list(float_instead),
        "accuracy": {"any": {"keep": 0.5}},
    }
    settings = {"name": "quantize", "ranges": ["minmax"], "max_float_share": max_float_share}
    return prepare(
        folder / "model.onnx",
        resolve_profile(profile, {"gates": gates, "pass": [settings]}),
        SampleSplit(
            calibration=samples.pick(range(15)),
            search=samples.pick(range(15, 30)),
            held_out=samples.pick(range(30, 45)),
        ),
        folder / "work",
        **options,
    )
