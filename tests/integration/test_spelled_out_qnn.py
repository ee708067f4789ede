"""What `spell_out` writes otherwise is wrong on the HTP simulator as it was, and right as it is."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from edgepack.packager.judging.evaluation import open_plain
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.spell_out import spell_out
from edgepack.packager.profile.pass_settings import SpellOut
from edgepack.packager.profile.reading import load_profile
from tests.integration.quantized_on_qnn import try_quantized
from tests.unit.packager_passes.models import make_model, samples_for, weight

_PROFILE = load_profile("qnn-htp")
_WRONG = 0.1
"""Share of an output's size; 16 bits alone leave less than a hundredth of that."""


def _error_there(rows: int, settings: SpellOut, folder: Path) -> float:
    """How far a quantized SiLU after a convolution is off on the simulator, beside the CPU."""
    folder.mkdir()
    node, shape = helper.make_node, (1, 8, rows, 10)
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Sigmoid", ["c"], ["s"], name="sigmoid"),
        node("Mul", ["c", "s"], ["y"], name="silu"),
    ]
    model = make_model(nodes, {"x": shape}, {"y": shape}, [weight("w", 8, 8, 1, 1)])
    samples = samples_for(model, 4)
    context = PassContext(
        profile_name="mine", limits=_PROFILE.limits, samples=samples, work_dir=folder
    )
    written = spell_out(model, settings, context).model
    path, trial = try_quantized(written, _PROFILE, samples, folder, count=1)
    want = open_plain(path)(samples.read(0))["y"].astype(np.float64)
    got = trial.outputs[0]["y"].astype(np.float64)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("rows", [8, 13])
def test_a_convolution_times_its_sigmoid_is_right_on_maps_of_other_sizes(
    rows: int, tmp_path: Path
) -> None:
    assert _error_there(rows, SpellOut(ops=()), tmp_path / "as-it-was") < 0.001


@pytest.mark.parametrize("rows", [9, 10, 11, 12])
def test_a_convolution_times_its_sigmoid_is_right_where_they_are_set_apart(
    rows: int, tmp_path: Path
) -> None:
    was = _error_there(rows, SpellOut(ops=()), tmp_path / "as-it-was")
    assert was > _WRONG, "the simulator computes it rightly now: the rule is needed no longer"
    assert _error_there(rows, SpellOut(), tmp_path / "set-apart") < 0.001
