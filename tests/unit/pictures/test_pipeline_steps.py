"""Host steps of pipelines, on pictures and maps whose result is known."""

import tracemalloc
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw

from edgepack.stages.loops import Loop
from edgepack.stages.pixels import cut_out, resize
from edgepack.stages.running import run_wiring
from edgepack.stages.steps import Value, run_step
from edgepack.stages.text_boxes import find_text
from edgepack.stages.wiring import (
    Boxes,
    Crop,
    Ctc,
    Keep,
    PipelineInput,
    Resize,
    StageWiring,
    Step,
    Turn,
    Wiring,
)
from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.pages.measure import TASK

BOXES = Boxes(input="m", scaled="s", picture="p", output="b")


def ramp(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return pixels that grow to the right by 2 and down by 1."""
    rows, columns = np.mgrid[:height, :width]
    return np.repeat((2 * columns + rows)[:, :, None], 3, axis=2).astype(np.uint8)


def test_resizing_is_linear_between_pixels() -> None:
    picture = ramp(20, 40)
    larger = resize(picture, 40, 80)
    assert larger.shape == (40, 80, 3)
    rows, columns = np.mgrid[4:36, 4:76]
    exact = 2 * ((columns + 0.5) / 2 - 0.5) + (rows + 0.5) / 2 - 0.5
    assert np.abs(larger[4:36, 4:76, 0] - exact).max() <= 1.0
    np.testing.assert_array_equal(resize(picture, 20, 40), picture)


def test_resizing_a_column_of_a_million_rows_takes_the_memory_of_the_result() -> None:
    picture = np.zeros((1_000_000, 1, 3), np.uint8)
    tracemalloc.start()
    try:
        assert resize(picture, 2000, 32).shape == (2000, 32, 3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_mask_covers_what_a_graph_of_any_size_would_get() -> None:
    line = Resize(input="p", output="t", fit="line", height=8, width=16, together=2)
    lines: list[Tensor] = [ramp(8, width)[None] for width in (6, 30, 50, 90)]
    shapes = {"t": (1, 3, 8, 64), "t/padding-mask": (1, 1, 1, 64)}
    made = run_step(line, {"p": lines}, shapes)
    free = run_step(line, {"p": lines}, {})["t"]
    assert [int(mask.sum()) for mask in made["t/padding-mask"]] == [30, 30, 64, 64]
    for fixed, mask, tensor in list(zip(made["t"], made["t/padding-mask"], free, strict=True))[:2]:
        np.testing.assert_array_equal(fixed[..., : tensor.shape[3]], tensor)
        assert not fixed[..., mask[0, 0, 0] == 0].any()
    page = Resize(input="p", output="t", least_side=32)
    shapes = {"t": (1, 3, 64, 96), "t/padding-mask": (1, 1, 64, 96)}
    for height, width, filled in ((40, 70, (32, 64)), (128, 128, (64, 64)), (16, 80, (32, 96))):
        picture = ramp(height, width)[None]
        mask = np.asarray(run_step(page, {"p": picture}, shapes)["t/padding-mask"])
        assert (mask[0, 0, :, 0].sum(), mask[0, 0, 0].sum()) == filled
    empty: list[Tensor] = []
    assert run_step(line, {"p": empty}, {"t/padding-mask": (1, 1, 1, 64)}) == {
        "t": [],
        "t/padding-mask": [],
    }


@pytest.mark.parametrize(("height", "width"), [(0, 5), (5, 0), (0, 0)])
def test_picture_without_pixels_is_rejected(height: int, width: int) -> None:
    step = Resize(input="p", output="x")
    with pytest.raises(ValueError, match=f"{width} x {height} pixels"):
        run_step(step, {"p": np.zeros((1, height, width, 3), np.uint8)}, {})


def test_upright_box_is_cut_out_unchanged_and_high_box_is_turned() -> None:
    picture = ramp(60, 100)
    box = np.array([[10, 20], [50, 20], [50, 40], [10, 40]], np.float64)
    np.testing.assert_array_equal(cut_out(picture, box), picture[20:40, 10:50])
    high = np.array([[10, 10], [30, 10], [30, 50], [10, 50]], np.float64)
    np.testing.assert_array_equal(cut_out(picture, high), np.rot90(picture[10:50, 10:30]))


def test_boxes_are_found_in_reading_order_and_grow() -> None:
    values = np.zeros((100, 200), np.float32)
    places = [(110, 12, 180, 22), (10, 10, 90, 20), (10, 60, 150, 74)]
    for left, top, right, bottom in places:
        values[top:bottom, left:right] = 0.9
    values[90:92, 10:190] = 0.9  # too low for a line
    values[40:50, 10:60] = 0.4  # text, and not enough of it
    found = find_text(BOXES, values[None, None], np.array([0.5, 0.5], np.float32), (200, 400))
    corners = found[:, [0, 2]].reshape(-1, 4)
    assert len(corners) == 3
    for have, place in zip(corners, [places[1], places[0], places[2]], strict=True):
        left, top, right, bottom = place
        wide, high = right - left, bottom - top
        grown = 1.6 * wide * high / (2 * (wide + high))
        exact = np.array([left - grown, top - grown, right + grown, bottom + grown]) * 2
        limit = np.clip(exact, 0, [399, 199, 399, 199])
        assert np.abs(have - limit).max() <= 5


def test_slanted_box_has_the_angle_of_its_line() -> None:
    canvas = Image.new("L", (200, 120))
    ImageDraw.Draw(canvas).rectangle((40, 50, 160, 64), fill=255)
    values = np.asarray(canvas.rotate(10, resample=Image.Resampling.BICUBIC), np.float32) / 255
    (box,) = find_text(BOXES, values[None, None], np.ones(2, np.float32), (120, 200))
    slope = np.degrees(np.arctan2(box[1, 1] - box[0, 1], box[1, 0] - box[0, 0]))
    assert slope == pytest.approx(-10, abs=1.5)


def test_empty_map_gives_no_line_to_the_end() -> None:
    nothing = find_text(BOXES, np.zeros((1, 1, 32, 32)), np.ones(2, np.float32), (32, 32))
    assert nothing.shape == (0, 4, 2)
    ctc = Ctc(input="c", output="t", scores="s", characters=("a",))
    texts = run_step(ctc, {"c": []}, {})
    keep = Keep(inputs=("t", "b"), outputs=("u", "v"), by="s")
    kept = run_step(keep, {**texts, "b": nothing}, {})
    assert {name: np.shape(one) for name, one in kept.items()} == {"u": (0, 0), "v": (0, 4, 2)}
    part = TaskOutputs(task="pages", outputs=("v", "u"))
    outputs = {name: np.asarray(one) for name, one in kept.items()}
    assert TASK.open(part, [outputs]).measure([outputs]).value == 1.0


def test_lines_that_go_together_have_one_width_and_fixed_graphs_get_theirs() -> None:
    step = Resize(input="p", output="x", fit="line", height=16, width=20, together=2)
    lines: Value = [np.zeros((1, 8, width, 3), np.uint8) for width in (8, 40, 24)]
    made = run_step(step, {"p": lines}, {})["x"]
    assert [one.shape for one in made] == [(1, 3, 16, 48), (1, 3, 16, 80), (1, 3, 16, 48)]
    fixed = run_step(step, {"p": lines}, {"x": (1, 3, 32, 64)})["x"]
    assert {one.shape for one in fixed} == {(1, 3, 32, 64)}
    page = Resize(input="p", output="x", scaled="s", least_side=64, multiple=32)
    free = run_step(page, {"p": np.zeros((1, 40, 100, 3), np.uint8)}, {})
    assert np.shape(free["x"]) == (1, 3, 64, 160)
    whole = run_step(page, {"p": np.full((1, 40, 80, 3), 255, np.uint8)}, {"x": (1, 3, 80, 100)})
    assert np.shape(whole["x"]) == (1, 3, 80, 100)
    np.testing.assert_allclose(np.asarray(whole["s"], np.float64), 1.25)
    assert np.asarray(whole["x"])[0, 0, 50:].max() == 0.0


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (
            Crop(input="p", boxes="m", output="l"),
            r"step 'crop' of 'p'.* p \[1, 8, 8, 3\], m \[1, 1",
        ),
        (Keep(inputs=("b",), outputs=("k",), by="m"), r"'keep'.* b \[2, 4, 2\], m \[1, 1, 8, 8\]"),
        (
            Boxes(input="p", scaled="s", picture="p", output="f"),
            r"'boxes'.* p \[1, 8, 8, 3\], s \[2\]",
        ),
        (Keep(inputs=("l",), outputs=("k",), by="s"), r"'keep'.* l a list of 1, s \[2\]"),
    ],
)
def test_step_with_a_wrong_tensor_names_the_step_and_the_shapes(step: Step, told: str) -> None:
    values: dict[str, Value] = {
        "p": np.zeros((1, 8, 8, 3), np.uint8),
        "m": np.zeros((1, 1, 8, 8), np.float32),
        "b": np.zeros((2, 4, 2), np.float32),
        "s": np.ones(2, np.float32),
        "l": [np.zeros((1, 8, 8, 3), np.uint8)],
    }
    with pytest.raises(ValueError, match=told):
        run_step(step, values, {})


def test_only_a_sure_classifier_turns_a_line() -> None:
    line = ramp(8, 30)[None]
    turn = Turn(input="l", by="c", output="o")
    for share, is_turned in ((0.95, True), (0.85, False)):
        made = run_step(turn, {"l": line, "c": np.array([[1 - share, share]], np.float32)}, {})
        expected = line[:, ::-1, ::-1] if is_turned else line
        np.testing.assert_array_equal(made["o"], expected)


def test_decoder_is_repeated_until_its_text_ends() -> None:
    wiring = Wiring(
        inputs=(PipelineInput(name="e", kind="tensor", dtype="float32", shape=(1, 4)),),
        outputs=("t",),
        stages=(
            StageWiring(
                name="decoder",
                inputs={"states": "e"},
                outputs={"logits": "t"},
                loop=Loop(tokens="ids", start=(5,), end=(2,), most=9, suppress=(4,)),
            ),
        ),
    )

    def count_down(feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        ids = np.asarray(feeds["ids"], np.int64)
        logits = np.zeros((1, ids.shape[1], 6), np.float32)
        logits[0, -1, [ids[0, -1] - 1, max(ids[0, -1] - 2, 0)]] = 2.0, 1.0
        return {"logits": logits}

    found = run_wiring(wiring, {"decoder": count_down}, {}, {"e": np.zeros((1, 4), np.float32)})
    assert found["t"].tolist() == [[5, 3, 2]]


def test_measure_of_pages_counts_lost_and_wrong_lines() -> None:
    part = TaskOutputs(task="pages", outputs=("boxes", "texts", "scores"))
    box = np.array([[0, 0], [100, 0], [100, 10], [0, 10]], np.float32)
    boxes = box + np.arange(10, dtype=np.float32)[:, None, None] * np.array([0, 20], np.float32)
    texts = np.tile(np.array([ord(letter) for letter in "abcdefghij"], np.int32), (10, 1))
    page: Outputs = {"boxes": boxes, "texts": texts, "scores": np.ones(10, np.float32)}
    expected = TASK.open(part, [page])
    assert expected.measure([page]).value == 1.0
    shuffled: Outputs = {name: one[::-1] for name, one in page.items()}
    assert expected.measure([shuffled]).value == 1.0
    lost: Outputs = {name: one[1:] for name, one in page.items()}
    assert expected.measure([lost]).value == pytest.approx(0.9)
    wrong: Outputs = {**page, "texts": np.where(np.arange(10)[:, None] < 2, texts + 1, texts)}
    assert expected.measure([wrong]).value == pytest.approx(0.8)
    assert expected.measure([{**page, "boxes": boxes[:, :2]}]).value == pytest.approx(0.0)
