"""A model of pictures from the build to an application: the bundle says how pictures are prepared,
and the device does just that.
"""

import contextlib
import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from PIL import Image

from edgepack.agent import PictureError, open_model
from edgepack.bundle.forms import read_manifest
from edgepack.bundle.golden import read_golden
from edgepack.bundle.manifest import GOLDEN_FILE
from edgepack.pictures.prepare import prepare_picture
from tests.integration.picture_builds import build_bundle, edgepack, install
from tests.simulators.waiting import wait_until
from tests.unit.packager_io.models import save, small_cnn
from tests.unit.pictures.drawn import noise

NAMES = ("cat", "dog", "emu", "fox", "gnu", "hen", "ibis", "jay", "koi", "lark")

CONFIG = f"""
[inputs.images]
kind = "image"
resize = "letterbox"
filter = "bicubic"
color = "BGR"
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]

[outputs.scores]
task = "classification"
class_names = {json.dumps(NAMES)}
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw 40 pictures of several sizes."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(40):
        form = "jpg" if number % 2 else "png"
        noise(9 + number, 40 - number // 2, seed=number).save(folder / f"{number:02}.{form}")
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, pictures: Path, key: Path) -> Path:
    """Build a classifier with the command."""
    folder = tmp_path_factory.mktemp("classifier")
    model = save(small_cnn(), folder / "zoo.onnx")
    return build_bundle(model, CONFIG, pictures, key, folder / "zoo-1.0.0")


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory, bundle: Path, key: Path) -> Path:
    """Install the classifier on a device without a broker."""
    state = tmp_path_factory.mktemp("device")
    (state / "said").write_text(install(bundle, key, state))
    return state


def test_the_bundle_says_how_pictures_become_the_models_input(bundle: Path) -> None:
    said: dict[str, Any] = json.loads(edgepack("inspect", bundle, "--json"))["manifest"]
    (known,) = said["facts"]["description"]["inputs"]
    assert known["mean"] == [0.485, 0.456, 0.406]
    assert (known["height"], known["width"], known["batch"]) == (8, 8, 0)
    assert known["is_checked"] is True
    shown = edgepack("inspect", bundle)
    how = f"letterbox with {known['pad']} (bicubic)"
    words = f"image, NCHW BGR, resize {how} to 8 x 8, (pixel * 0.00392157 - [0.485, "
    assert f"input images: {words}" in shown
    assert "output scores: classification, 10 classes: cat, dog, emu" in shown
    assert words in (bundle.parent / "zoo-1.0.0.report.html").read_text()


def test_the_device_prepares_a_picture_with_the_same_bits_as_the_build(
    bundle: Path, pictures: Path
) -> None:
    described = read_manifest(bundle).facts.description.picture
    assert described is not None
    prepared = {
        prepare_picture(path, described).tensor.tobytes() for path in sorted(pictures.iterdir())
    }
    golden = read_golden(bundle / GOLDEN_FILE)
    assert len(golden.inputs) > 1
    for feeds in golden.inputs:
        assert np.ascontiguousarray(feeds["images"]).tobytes() in prepared


def test_the_device_proves_the_preparation_by_golden_pictures(
    bundle: Path, state_dir: Path
) -> None:
    shipped = sorted((bundle / "golden" / "pictures").iterdir())
    count = len(read_golden(bundle / GOLDEN_FILE).inputs)
    assert [path.stem for path in shipped] == [f"{number}-0" for number in range(count)]
    words = f"{count} golden pictures: prepared here with the same bits as in the build"
    assert f"prepared  {words}" in (state_dir / "said").read_text()
    report = (bundle.parent / "zoo-1.0.0.report.html").read_text()
    assert words in report
    assert f"carries {count} pictures of the golden samples as given" in report


def test_an_application_asks_with_a_picture_and_gets_names(state_dir: Path, pictures: Path) -> None:
    path = pictures / "07.jpg"
    with open_model("zoo", state_dir, threads=1) as model, model.session() as session:
        labels = model.classify(path)
        described = model.description.picture
        assert described is not None
        prepared = prepare_picture(path, described)
        by_hand = model.run({"images": prepared.tensor})
        with Image.open(path) as image:
            pixels = np.asarray(image)
        ways = (str(path), path.read_bytes(), pixels, {"images": prepared.tensor})
        others = [model.classify(way) for way in ways]
        others.append(session.classify(path))
        answer = model.run_image(path)
    assert [label.name for label in labels] == [NAMES[label.number] for label in labels]
    assert len(labels) == 5
    assert all(other == labels for other in others)
    assert answer.labels == labels
    np.testing.assert_array_equal(answer.outputs["scores"], by_hand["scores"])
    assert labels[0].number == int(by_hand["scores"].argmax())
    words = ("infer", "zoo", path, "--state-dir", state_dir)
    shown = edgepack(*words, module="edgepack.agent.cli")
    assert f"\n{labels[0].name}  {labels[0].score:.3f}\n" in shown


def test_a_question_that_the_model_cannot_answer_says_why(state_dir: Path, pictures: Path) -> None:
    with open_model("zoo", state_dir, threads=1) as model:
        with pytest.raises(ValueError, match=r"`detect` needs .*: this one gives classes"):
            model.detect(pictures / "00.png")
        with pytest.raises(PictureError, match="does not exist"):
            model.classify("absent.png")
        with pytest.raises(PictureError, match="cannot be read as an image"):
            model.classify(b"GIF89a")
        with pytest.raises(TypeError, match="a picture is a path, bytes or a numpy array"):
            model.classify(3)  # type: ignore[arg-type]
        assert model.classify(pictures / "00.png"), "the model serves on"


def test_a_release_with_other_channels_and_classes_gives_the_same_answers(
    bundle: Path, pictures: Path, key: Path, tmp_path: Path
) -> None:
    """The application does not change: the new bundle says RGB and another order of classes."""
    order = np.random.default_rng(5).permutation(len(NAMES))
    proto = small_cnn()
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    places: dict[str, Any] = {
        "w1": (slice(None), slice(None, None, -1)),
        "w3": (slice(None), order),
        "b3": order,
    }
    for name, place in places.items():
        values = np.ascontiguousarray(numpy_helper.to_array(weights[name])[place])
        weights[name].CopyFrom(numpy_helper.from_array(values, name))
    config = CONFIG.replace("BGR", "RGB").replace(
        json.dumps(NAMES), json.dumps([NAMES[place] for place in order])
    )
    for row in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]):
        config = config.replace(str(row), str(row[::-1]))
    path = save(proto, tmp_path / "zoo.onnx")
    output = tmp_path / "zoo-2.0.0"
    second = build_bundle(path, config, pictures, key, output, "--leave-out-pictures")
    assert not (second / "golden" / "pictures").exists()
    state = tmp_path / "device"
    install(bundle, key, state)
    asked = sorted(pictures.iterdir())[:6]
    with open_model("zoo", state, threads=1, poll_s=0.02) as model:
        before = [model.classify(picture) for picture in asked]
        install(second, key, state)
        wait_until(lambda: model.bundle.version == "2.0.0")
        after = [model.classify(picture) for picture in asked]
    for old, new in zip(before, after, strict=True):
        assert [label.name for label in new] == [label.name for label in old]
        assert [label.number for label in new] != [label.number for label in old]
        assert [one.score for one in new] == pytest.approx([one.score for one in old], abs=1e-5)


def test_a_runner_of_edge_impulse_gets_the_answers_of_the_model(
    state_dir: Path, pictures: Path, tmp_path: Path
) -> None:
    """Requests and answers are as `edge_impulse_linux` 1.2.2 sent and accepted them."""
    program, place = tmp_path / "zoo.eim", tmp_path / "runner.sock"
    words = ("eim", "zoo", "--state-dir", state_dir, "-o", program)
    edgepack(*words, module="edgepack.agent.cli")
    with open_model("zoo", state_dir, threads=1) as model, Image.open(pictures / "07.jpg") as image:
        pixels = np.asarray(image.convert("RGB").resize((8, 8)))
        expected = {one.name: one.score for one in model.classify(pixels, top=10)}
    red, green, blue = (pixels[..., channel].astype(int).ravel() for channel in range(3))
    features = (red * 65536 + green * 256 + blue).tolist()
    process = subprocess.Popen([program, place])
    with socket.socket(socket.AF_UNIX) as peer, contextlib.ExitStack() as stack:
        stack.callback(process.wait, 60)
        stack.callback(process.send_signal, signal.SIGTERM)
        wait_until(place.exists, "the socket")
        wait_until(lambda: peer.connect_ex(str(place)) == 0, "the program")

        def ask(request: dict[str, Any]) -> dict[str, Any]:
            peer.send(json.dumps(request).encode())
            answer = b""
            while not answer.endswith(b"\0"):
                answer += peer.recv(1024)
            return dict(json.loads(answer[:-1]))

        said = ask({"hello": 1, "id": 1})
        assert (said["id"], said["success"]) == (1, True)
        assert said["project"]["name"] == "zoo 1.0.0"
        parameters = said["model_parameters"]
        assert parameters["labels"] == list(NAMES)
        assert parameters["model_type"] == "classification"
        assert (parameters["image_input_width"], parameters["image_channel_count"]) == (8, 3)
        assert parameters["input_features_count"] == 64

        said = ask({"classify": features, "id": 2})
        assert said["result"]["classification"] == pytest.approx(expected, abs=1e-6)
        assert said["timing"]["classification_us"] > 0
        for number, request in enumerate(
            [{"classify": features[:-1]}, {"classify": [-1] * 64}, {"set_threshold": {"id": 1}}], 3
        ):
            said = ask(request | {"id": number})
            assert (said["id"], said["success"]) == (number, False)
            assert said["error"]
        assert not ask({"classify": "x", "id": 6})["success"]
        assert ask({"classify": features, "id": 7})["success"]
        both = (json.dumps({"classify": features, "id": number}).encode() for number in (8, 9))
        peer.send(b"".join(both))
        answers = b""
        while answers.count(b"\0") < 2:
            answers += peer.recv(1024)
        assert [json.loads(one)["id"] for one in answers.split(b"\0")[:2]] == [8, 9]
    assert process.returncode == 0, "the model is closed"
    assert not place.exists()
