"""Objects, text, areas and vectors of pictures, from the build to an application.

The models compute known answers: where colours are, which grey level each letter has.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from PIL import Image

from edgepack.agent import Model, open_model
from edgepack.pictures import answers
from edgepack.pictures.prepare import prepare_picture
from tests.integration.picture_builds import build_bundle, install
from tests.simulators.model_server import ModelServer
from tests.unit.packager_io.models import save
from tests.unit.pictures.drawn import encoded
from tests.unit.pictures.models import LETTERS, colour_finder, colour_map, grey_reader

Pixels = npt.NDArray[np.uint8]


def _colours(seed: int) -> Pixels:
    """Draw red and blue cells of 8 x 8 pixels at places of a black picture."""
    rng = np.random.default_rng(seed)
    picture = np.zeros((64, 64, 3), np.uint8)
    for number, place in enumerate(rng.choice(64, 6, replace=False)):
        row, column = divmod(int(place), 8)
        picture[row * 8 :, column * 8 :, (0, 2)[number % 2]][:8, :8] = 255
    return picture


def _text(letters: str) -> Pixels:
    """Draw a letter in every second cell of a line of 16."""
    line = np.zeros((8, 128), np.uint8)
    for number, letter in enumerate(letters):
        line[:, number * 16 : number * 16 + 8] = round(LETTERS.index(letter) * 255 / 7)
    return line


def _texts(seed: int) -> Pixels:
    return _text("".join(np.random.default_rng(seed).choice(LETTERS[1:], 1 + seed % 8)))


def _open(
    model: onnx.ModelProto, draw: Callable[[int], Pixels], outputs: str, key: Path, folder: Path
) -> Model:
    """Build a model for drawn pictures, install the bundle, and open the model."""
    samples = folder / "samples"
    samples.mkdir()
    for seed in range(24):
        Image.fromarray(draw(seed)).save(samples / f"{seed:02}.png")
    grey = 'color = "GRAY"\n' if draw(0).ndim == 2 else ""
    config = f'[inputs.x]\nkind = "image"\nresize = "letterbox"\npad = 0\n{grey}'
    config += f"prepared_as_trained = true\n[outputs.y]\n{outputs}\n"
    path = save(model, folder / "m.onnx")
    install(build_bundle(path, config, samples, key, folder / "m-1.0.0"), key, folder / "state")
    return open_model("m", folder / "state", threads=1)


def _ask_server(picture: Pixels, folder: Path) -> Any:
    """Return what the model server answers to the file of a picture."""
    server = ModelServer(folder)
    server.start()
    answer = server.ask("POST", "/v2/models/m/image", encoded(Image.fromarray(picture)))
    assert server.stop() == 0, server.said()
    return answer.value


def test_a_detector_returns_boxes_in_pixels_of_the_picture(key: Path, tmp_path: Path) -> None:
    outputs = 'task = "detections"\nlayout = "yolo"\nclass_names = ["red", "blue"]'
    wide = np.zeros((80, 160, 3), np.uint8)  # The model sees it at .4 of its size, 16 lower.
    wide[20:40, 60:80, 0] = 255
    wide[40:60, 140:160, 2] = 255
    with _open(colour_finder(), _colours, outputs, key, tmp_path) as model:
        boxes = model.detect(wide)
        answer = model.run_image(wide)
        described = model.description
        assert described.picture is not None
        tensor, frame = prepare_picture(wide, described.picture)
        by_hand = model.run({"x": tensor})
        with pytest.raises(ValueError, match="this one finds objects"):
            model.read(wide)
    assert _ask_server(wide, tmp_path)["boxes"] == json.loads(msgspec.json.encode(boxes))
    found = {box.name: (box.left, box.top, box.right, box.bottom) for box in boxes}
    assert found["red"] == pytest.approx((60.0, 20.0, 80.0, 40.0))
    assert found["blue"] == pytest.approx((140.0, 40.0, 160.0, 60.0))
    assert len(boxes) == 2
    assert answer.boxes == boxes == answers.detect(described, by_hand, frame)
    np.testing.assert_array_equal(answer.outputs["y"], by_hand["y"])


def test_a_reader_returns_the_text(key: Path, tmp_path: Path) -> None:
    outputs = f'task = "text"\nspaces = false\nclass_names = {json.dumps(LETTERS)}'
    with _open(grey_reader(), _texts, outputs, key, tmp_path) as model:
        assert model.read(_text("bad cafe")) == "bad cafe"
        assert model.run_image(np.repeat(np.repeat(_text("a fa"), 3, 0), 3, 1)).text == "a fa"
    assert _ask_server(_text("bad cafe"), tmp_path)["text"] == "bad cafe"
    report = json.loads((tmp_path / "m-1.0.0.report.json").read_text())
    assert "Spaces do not count." in json.dumps(report)


def test_areas_have_the_pictures_size_and_an_embedding_is_a_vector(
    key: Path, tmp_path: Path
) -> None:
    outputs = 'task = "segmentation"\n[outputs.v]\ntask = "embedding"'
    wide = np.zeros((40, 80, 3), np.uint8)
    wide[:, :40, 1] = wide[:, 40:, 2] = 255
    with _open(colour_map(), _colours, outputs, key, tmp_path) as model:
        areas = model.segment(wide)
        vector = model.embed(wide)
        answer = model.run_image(wide)
    assert areas.shape == (40, 80)
    assert (areas[:, :40] == 1).all()
    assert (areas[:, 40:] == 2).all()
    halves = [0, 0, 0, 0, 0.5, 0, 0.5, 0, 0, 0.5, 0, 0.5]
    assert vector.tolist() == pytest.approx(halves, abs=0.01)
    np.testing.assert_array_equal(answer.vector, vector)
    np.testing.assert_array_equal(answer.areas, areas)
