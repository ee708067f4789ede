"""`edgepack.toml` declares the inputs once, and mismatches with the model are rejected."""

from pathlib import Path

import pytest

from edgepack.errors import BuildError
from edgepack.packager.config.build_file import read_config
from edgepack.packager.config.inputs import ImageInput, WantedInputs, check_declarations
from edgepack.packager.config.template import template
from edgepack.packager.tensors.spec import TensorSpec
from tests.unit.packager_io.models import IMAGE, TOKENS

_SIZES = {"images": (1, 3, 8, 8)}


def test_the_written_template_is_read_again_and_fits_the_model(tmp_path: Path) -> None:
    dotted = TensorSpec(name='state.0 "h"', dtype="float32", shape=(2, 1, 128))
    specs = (IMAGE, TOKENS, dotted)
    path = tmp_path / "edgepack.toml"
    path.write_text(template("my model.onnx", specs, _SIZES))
    config = read_config(path)
    assert set(config.inputs) == {spec.name for spec in specs}
    assert isinstance(config.inputs["images"], ImageInput)
    assert config.model.name == "my-model"
    assert config.calibration.path == str(tmp_path / "calibration")
    check_declarations(WantedInputs(specs=specs, declarations=config.inputs))


def test_the_input_that_was_meant_is_proposed_as_toml_wants_it() -> None:
    dotted = TensorSpec(name="serving/images:0", dtype="float32", shape=(1, 3, 8, 8))
    with pytest.raises(BuildError) as refused:
        check_declarations(WantedInputs(specs=(dotted,), declarations={"images": ImageInput()}))
    assert refused.value.remedy == '[inputs."serving/images:0"]'


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text("[model]\nnmae = 'x'\n")
    with pytest.raises(BuildError) as caught:
        read_config(path)
    assert "unknown key 'nmae'; allowed here: name, release, version" in caught.value.problem
    assert caught.value.found_in == f"{path}, model.nmae"
    assert caught.value.remedy == "name"


@pytest.mark.parametrize(
    ("text", "place", "problem", "remedy"),
    [
        (
            "[inputs.a]\nkind = 'raw'\n[inputs.b]\nkind = 'image'\nstdd = [1.0]\n",
            "inputs.b.stdd",
            "unknown key 'stdd'; allowed here: color, ",
            "std",
        ),
        (
            "[inputs.b]\nkind = 'image'\nstd = 'a'\n",
            "inputs.b.std",
            "inputs.b.std must be a list, and is 'a'",
            "put it in brackets: [...]",
        ),
        (
            "[inputs.b]\nkind = 'image'\nlayout = 'CHW'\n",
            "inputs.b.layout",
            "inputs.b.layout is 'CHW'; allowed are: NCHW, NHWC",
            "NCHW",
        ),
        (
            "[build]\nprofiles = 'cpu'\n",
            "build.profiles",
            "build.profiles must be a list, and is 'cpu'",
            "put it in brackets: [...]",
        ),
        (
            "[build]\nprefer = 'sped'\n",
            "build.prefer",
            "build.prefer is 'sped'; allowed are: speed, size, balanced",
            "speed",
        ),
        (
            "[inputs.b]\nkind = 'sound'\n",
            "inputs.b.kind",
            "inputs.b.kind is 'sound'; allowed are: image, raw, tokens",
            "edgepack init MODEL -o example.toml shows every key",
        ),
        (
            "[build.value]\nb = 'a'\n",
            "build.value.b",
            "build.value.b must be true or false or a number or a list, and is 'a'",
            "edgepack init MODEL -o example.toml shows every key",
        ),
    ],
)
def test_what_is_wrong_with_a_value_is_told_with_its_place(
    tmp_path: Path, text: str, place: str, problem: str, remedy: str
) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text(text)
    with pytest.raises(BuildError) as caught:
        read_config(path)
    assert problem in caught.value.problem
    assert caught.value.found_in == f"{path}, {place}"
    assert caught.value.remedy == remedy


@pytest.mark.parametrize(
    ("section", "text", "bound"),
    [
        ("inputs", 'kind = "raw"\nsteps = 0', ">= 1, and is 0"),
        ("inputs", 'kind = "tokens"\nvocabulary = 0', ">= 1, and is 0"),
        ("inputs", 'kind = "image"\nshort_side = 0', ">= 1, and is 0"),
        ("inputs", 'kind = "image"\nsize = []', "of length >= 1, and is []"),
        ("inputs", 'kind = "image"\npad = 256', "<= 255, and is 256"),
        ("outputs", 'task = "detections"\nclasses = 0', ">= 1, and is 0"),
        ("outputs", 'task = "detections"\nscores = ""', "of length >= 1, and is ''"),
        ("outputs", 'task = "text"\nblank = -1', ">= 0, and is -1"),
        ("outputs", 'task = "text"\nclass_names = []', "of length >= 1, and is []"),
        ("outputs", 'task = "tokens"\ntokens = ""', "of length >= 1, and is ''"),
    ],
)
def test_value_without_meaning_is_rejected(
    tmp_path: Path, section: str, text: str, bound: str
) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text(f"[{section}.it]\n{text}\n")
    key = text.rpartition("\n")[2].partition(" ")[0]
    with pytest.raises(BuildError) as caught:
        read_config(path)
    assert f"{section}.it.{key} must be {bound}" in caught.value.problem
    assert caught.value.found_in == f"{path}, {section}.it.{key}"


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_bytes(b"\xef\xbb\xbf[model]\nname = 'ocr'\n")
    assert read_config(path).model.name == "ocr"


@pytest.mark.parametrize("text", ["[model\n", "a = " + "[" * 5000 + "]" * 5000])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text(text)
    with pytest.raises(BuildError, match=r"edgepack\.toml is wrong"):
        read_config(path)


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        (ImageInput(color="GRAY"), "GRAY has 1 channels, axis 1 of images"),
        (ImageInput(layout="NHWC"), "RGB has 3 channels, axis 3 of images"),
        (ImageInput(mean=(0.1, 0.2)), "mean has 2 values for 3 channels"),
        (ImageInput(std=(0.0,)), "std has a 0"),
        (ImageInput(size=(8, 8, 3)), "size is height and width"),
        (ImageInput(size=(320, 7)), r"size = \[320, 7\] is not what images"),
    ],
)
def test_a_declaration_against_the_model_is_refused(declaration: ImageInput, problem: str) -> None:
    with pytest.raises(BuildError, match=problem):
        check_declarations(WantedInputs(specs=(IMAGE,), declarations={"images": declaration}))


def test_a_declared_input_the_model_lacks_suggests_the_nearest() -> None:
    with pytest.raises(BuildError) as caught:
        check_declarations(
            WantedInputs(specs=(IMAGE, TOKENS), declarations={"image": ImageInput()}),
        )
    assert caught.value.remedy == "[inputs.images]"


def test_the_template_names_scalars_that_may_become_constants() -> None:
    rate = TensorSpec(name="sr", dtype="int64", shape=())
    assert template("vad.onnx", (IMAGE, rate), _SIZES).endswith(
        "becomes a constant\n# sr = 1  # sr: int64[]\n"
    )
    assert "[build.value]" not in template("cnn.onnx", (IMAGE,), _SIZES)


def test_the_template_has_examples_of_sizes_that_are_open() -> None:
    words = TensorSpec(name="ids", dtype="int64", shape=("batch", "seq"))
    text = template("m.onnx", (words,), {"ids": (1, 128)})
    assert "\n\n# [build.shape]" in text
    assert text.endswith("\n# ids = [1, 128]  # ids: int64[batch,seq]\n")
    fixed = TensorSpec(name="ids", dtype="int64", shape=(1, 128))
    assert "[build.shape]" not in template("m.onnx", (fixed,), {})
