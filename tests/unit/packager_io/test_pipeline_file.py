"""A pipeline's file: what is rejected, with the stage, the tensor and the numbers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepack.errors import BuildError
from edgepack.packager.stages.float_pipeline import FloatPipeline
from edgepack.packager.stages.pipeline_file import StageSource, read_pipeline
from edgepack.packager.stages.pipeline_samples import open_pipeline_samples
from edgepack.packager.stages.plans import plan_variants
from edgepack.packager.stages.stage_shapes import LargestInputs
from edgepack.stages.wiring import StageWiring, Wiring, order_nodes
from tests.simulators.pipelines import pipeline_of_two

_RESIZE = '[[step]]\nkind = "resize"\ninput = "middle"\noutput = "b"\n'


def save_graph(
    path: Path, size: int = 4, dtype: int = TensorProto.FLOAT, sizes: Sequence[int | str] = ()
) -> None:
    """Write a graph `y = x + x` of [1, size], or of other sizes."""
    ends = [helper.make_tensor_value_info(name, dtype, sizes or [1, size]) for name in "xy"]
    node = helper.make_node("Add", ["x", "x"], ["y"], name="add")
    graph = helper.make_graph([node], path.stem, ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two graphs."""
    save_graph(tmp_path / "first.onnx")
    save_graph(tmp_path / "second.onnx")
    return tmp_path


def write(folder: Path, *changes: tuple[str, str], more: str = "") -> Path:
    """Write the pipeline with changes of its text."""
    text = pipeline_of_two()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "pipeline.toml"
    path.write_text(text + more)
    return path


def test_stages_are_ordered_by_their_tensors(folder: Path) -> None:
    source = read_pipeline(write(folder), folder)
    wiring = Wiring(
        inputs=source.wiring.inputs,
        outputs=source.wiring.outputs,
        stages=source.wiring.stages[::-1],
    )
    nodes = order_nodes(wiring)
    assert [one.name for one in nodes if isinstance(one, StageWiring)] == ["first", "second"]
    names = [plan.name for plan in plan_variants(source, ["fp32", "cpu"])]
    assert names == ["fp32", "cpu"]


@pytest.mark.parametrize(
    ("change", "more", "facts"),
    [
        (('x = "middle"', 'x = "lost"'), "", ("'lost'", "stage 'second'", "3 tensors", "middle")),
        (('y = "end"', 'y = "middle"'), "", ("'middle'", "stage 'first'", "stage 'second'")),
        (('x = "start"', 'x = "end"'), "", ("2 nodes wait", "'first'", "'second'", "cycle")),
        (("second.onnx", "gone.onnx"), "", ("stage 'second'", "gone.onnx", "does not exist")),
        (('{ x = "middle" }', '{ z = "middle" }'), "", ("no input 'z'", "its inputs are x")),
        (('name = "second"', 'name = "first"'), "", ("2 stages", "'first'")),
        (('task = "values"', 'task = "poems"'), "", ("'poems'", "values")),
        (("[1, 4]", "[1, 4]\nsize = 3"), "", ("size",)),
        (
            ("", ""),
            '[[step]]\nkind = "blur"\ninput = "middle"\noutput = "b"\n',
            ("'blur'", "step 1 of 1", "resize", "ctc"),
        ),
        (
            ("", ""),
            '[[step]]\nkind = "resize"\ninput = "middle"\noutput = "b"\n',
            ("'middle'", "no picture"),
        ),
        (
            ('outputs = ["end"]', 'outputs = ["texts"]'),
            '[[step]]\nkind = "ctc"\ninput = "end"\noutput = "texts"\n',
            ("0 characters", "4 classes", "stage 'second'"),
        ),
        (("", ""), _RESIZE + "std = [0.5, 0, 0.5]\n", ("step[0].std[1]", ">= ")),
        (("", ""), _RESIZE + "std = [0.5, 0.5]\n", ("step 'resize'", "2 numbers")),
        (
            ("", ""),
            _RESIZE + 'fit = "line"\nmost_width = 0\n',
            ("step[0].most_width", ">= 1"),
        ),
        (
            ("", ""),
            '[[variant]]\nname = "v"\nstages = { third = "cpu" }\n',
            ("'third'", "first, second"),
        ),
    ],
)
def test_wrong_pipelines_are_rejected(
    folder: Path, change: tuple[str, str], more: str, facts: tuple[str, ...]
) -> None:
    path = write(folder, change, more=more)
    with pytest.raises(BuildError) as caught:
        plan_variants(read_pipeline(path, path.parent), ["fp32"])
    told = str(caught.value)
    assert all(fact in told for fact in facts), told
    assert str(path) in told


@pytest.mark.parametrize(
    ("size", "dtype", "facts"),
    [
        (5, TensorProto.FLOAT, ("'middle'", "float32 [1, 4]", "'second'", "float32 [1, 5]")),
        (4, TensorProto.DOUBLE, ("float32 [1, 4]", "float64 [1, 4]")),
    ],
)
def test_stages_that_do_not_fit_each_other_are_rejected(
    folder: Path, size: int, dtype: int, facts: tuple[str, ...]
) -> None:
    save_graph(folder / "second.onnx", size, dtype)
    with pytest.raises(BuildError) as caught:
        FloatPipeline(read_pipeline(write(folder), folder))
    assert all(fact in str(caught.value) for fact in facts), caught.value


_PAGES = """
[pipeline]
task = "values"
outputs = ["map"]
[inputs.picture]
[[step]]
kind = "resize"
input = "picture"
output = "page"
least_side = 64
[[stage]]
name = "see"
model = "see.onnx"
inputs = { x = "page" }
outputs = { y = "map" }
shape = { SHAPE }
"""


def write_pages(folder: Path, shape: str) -> Path:
    """Write a pipeline whose stage takes pages of any size."""
    save_graph(folder / "see.onnx", sizes=["n", 3, "h", "w"])
    path = folder / "pages.toml"
    path.write_text(_PAGES.replace("SHAPE", shape))
    return path


@pytest.mark.parametrize(
    ("shape", "facts"),
    [
        ("x = [1, 3, 64, 0]", ("stage[see].shape.x[3]", ">= 1")),
        ("x = [1, 3, -64, 64]", ("stage[see].shape.x[2]", ">= 1")),
        ("x = [1, 3, 64]", ("input 'x'", "stage 'see'", "[1, 3, 64]", "[n, 3, h, w]")),
        ("x = [1, 1, 64, 64]", ("[1, 1, 64, 64]", "[n, 3, h, w]")),
        ("x = [2, 3, 64, 64]", ("[2, 3, 64, 64]", "[1, 3, ?, ?]")),
        ("z = [1, 3, 64, 64]", ("no input 'z'", "its inputs are x")),
        ("x = [1, 3, 64, 100000000]", ("19,200,000,000 values", "268,435,455")),
    ],
)
def test_shapes_that_do_not_fit_are_rejected_before_anything_runs(
    tmp_path: Path, shape: str, facts: tuple[str, ...]
) -> None:
    path = write_pages(tmp_path, shape)
    with pytest.raises(BuildError) as caught:
        FloatPipeline(read_pipeline(path, tmp_path))
    assert all(fact in str(caught.value) for fact in (str(path), *facts)), caught.value


def test_a_profile_with_fixed_shapes_asks_for_the_shape_of_the_stage(tmp_path: Path) -> None:
    source = read_pipeline(write_pages(tmp_path, ""), tmp_path)
    with pytest.raises(BuildError, match=r"shape = { x = \[1, 3, …, …\] }.*'see'"):
        FloatPipeline(source).check_fixed(source.stages[0], "qnn-htp")


def test_pages_that_a_fixed_shape_shrinks_are_counted(tmp_path: Path) -> None:
    path = write_pages(tmp_path, "x = [1, 3, 64, 128]")
    floats = FloatPipeline(read_pipeline(path, tmp_path))
    pages = [np.full((1, 32, width, 3), 9, np.uint8) for width in (40, 64, 96)]
    floats.run([{"picture": page} for page in pages], "reading", lambda _: None)
    (told,) = floats.largest.describe("see")
    assert "[1, 3, 64, 128]" in told
    assert "1 of its 3 held-out inputs are larger, up to [1, 3, 64, 192]" in told
    assert floats.largest.describe("read") == []


def test_padding_of_lines_that_go_together_is_not_counted() -> None:
    stage = StageSource(name="read", path=Path("r"), given=Path("r"), shapes={"x": (1, 3, 48, 320)})
    largest = LargestInputs([stage])
    for width in (300, 500):
        line = np.zeros((1, 3, 48, 500), np.float32)
        line[..., :width] = 1
        largest.note("read", {"x": line})
    (told,) = largest.describe("read")
    assert "1 of its 2 held-out inputs are larger, up to [1, 3, 48, 500]" in told


def test_samples_are_real_and_complete(folder: Path) -> None:
    source = read_pipeline(write(folder), folder)
    with pytest.raises(BuildError, match="real samples"):
        open_pipeline_samples(source, "random:8", "")
    with pytest.raises(BuildError, match=r"no samples in .*\.npz"):
        open_pipeline_samples(source, str(folder), "")
    with pytest.raises(BuildError, match=r"a \.jsonl file of texts needs tokenizer\.json"):
        open_pipeline_samples(source, str(folder / "prompts.jsonl"), "")
