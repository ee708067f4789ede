"""A Hugging Face model folder is recognised, exported in a child, and refused with a remedy.

The children here stand in for PyTorch and write a real model.
"""

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.errors import BuildError
from edgepack.packager.pipeline.build import build_bundle as build
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import silent
from edgepack.packager.source.huggingface.folder import export_folder, is_model_folder
from edgepack.packager.source.model import load_source
from tests.unit.packager_io.models import save, small_cnn

_ANSWERS = """
import json, pathlib, shutil, sys
request = json.loads(sys.stdin.buffer.read())
output = pathlib.Path(request["output"])
output.mkdir()
(output / "request.json").write_text(json.dumps(request))
for name in {names}:
    shutil.copy({model!r}, output / name)
print("noise of a library")
print(json.dumps({answer}))
"""


def _folder(path: Path, **config: object) -> Path:
    path.mkdir()
    settings = {"model_type": "bert", "architectures": ["BertModel"], **config}
    (path / "config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture
def _has_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: {"torch": "2.9"}.get(name, "0.1.0"))


def _child(tmp_path: Path, *names: str, **answer: str) -> tuple[str, ...]:
    model = save(small_cnn(), tmp_path / "small.onnx")
    return (
        sys.executable,
        "-P",
        "-c",
        _ANSWERS.format(names=list(names), model=str(model), answer=repr(answer)),
    )


def test_a_folder_with_a_model_type_is_one(tmp_path: Path) -> None:
    assert is_model_folder(_folder(tmp_path / "bert"))


def test_other_folders_and_files_are_not(tmp_path: Path) -> None:
    assert not is_model_folder(tmp_path / "absent")
    assert not is_model_folder(save(small_cnn(), tmp_path / "small.onnx"))
    assert not is_model_folder(_folder(tmp_path / "other", model_type=None))
    exported = _folder(tmp_path / "exported")
    save(small_cnn(), exported / "model.onnx")
    assert not is_model_folder(exported), "its .onnx is meant, and load_source says so"
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert not is_model_folder(tmp_path / "broken")


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(BuildError) as caught:
        export_folder(_folder(tmp_path / "bert"), tmp_path / "out", silent)
    assert caught.value.problem == (
        "'bert' is a Hugging Face model folder: exporting it needs the package optimum-onnx, "
        "which is not installed"
    )
    assert caught.value.remedy is not None
    assert "pip install 'edgepack[huggingface]'" in caught.value.remedy


@pytest.mark.usefixtures("_has_the_extra")
def test_the_real_child_answers_with_a_problem(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "odd", architectures=["NoSuchModel"])
    with pytest.raises(BuildError, match=r"optimum-onnx cannot export NoSuchModel: .+") as caught:
        export_folder(folder, tmp_path / "out", silent)
    assert "the process" not in caught.value.problem, "it answered, it did not crash"


def test_a_build_from_a_folder_asks_for_the_extra_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def absent(name: str) -> str:
        if name == "optimum-onnx":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", absent)
    private, _ = write_key_pair(generate_key(), tmp_path / "release")
    out = tmp_path / "out"
    out.mkdir()
    request = BuildRequest(
        model=_folder(tmp_path / "bert"),
        output=out / "bert-1.0.0.edgepack",
        name="bert",
        version="1.0.0",
        release=1,
        profiles=("fp32",),
        key=private,
    )
    with pytest.raises(BuildError, match="'bert' is a Hugging Face model folder"):
        build(request, silent)
    assert list(out.iterdir()) == []


@pytest.mark.usefixtures("_has_the_extra")
def test_the_exported_model_is_an_ordinary_source(tmp_path: Path) -> None:
    folder, output = _folder(tmp_path / "bert"), tmp_path / "out"
    command = _child(tmp_path, "model.onnx", task="feature-extraction")
    model, note = export_folder(folder, output, silent, command=command)
    assert load_source(model).inputs[0].name == "images"
    assert note == (
        "Exported from the Hugging Face folder bert: BertModel, task feature-extraction, opset "
        "17, optimum-onnx 0.1.0, torch 2.9."
    )
    request = json.loads((output / "request.json").read_text())
    assert request["folder"] == str(folder)
    assert request["architecture"] == "BertModel"


@pytest.mark.usefixtures("_has_the_extra")
def test_what_the_exporter_objects_to_is_told(tmp_path: Path) -> None:
    command = _child(tmp_path, problem="Trying to export a foo model, not supported")
    with pytest.raises(BuildError) as caught:
        export_folder(_folder(tmp_path / "foo"), tmp_path / "out", silent, command=command)
    assert caught.value.problem == (
        "optimum-onnx cannot export BertModel: Trying to export a foo model, not supported"
    )
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith(f"optimum-cli export onnx --model {tmp_path / 'foo'}")


@pytest.mark.usefixtures("_has_the_extra")
def test_a_child_that_crashes_is_told(tmp_path: Path) -> None:
    command = (sys.executable, "-P", "-c", "import os; os.abort()")
    with pytest.raises(BuildError, match="the process crashed with SIGABRT"):
        export_folder(_folder(tmp_path / "bert"), tmp_path / "out", silent, command=command)


@pytest.mark.usefixtures("_has_the_extra")
def test_a_folder_that_exports_as_several_models_names_them(tmp_path: Path) -> None:
    command = _child(tmp_path, "encoder_model.onnx", "decoder_model.onnx", task="text2text")
    with pytest.raises(BuildError) as caught:
        export_folder(_folder(tmp_path / "t5"), tmp_path / "out", silent, command=command)
    assert caught.value.problem == (
        "the folder exports as 2 models: decoder_model.onnx, encoder_model.onnx; a bundle "
        "carries one"
    )


def test_a_folder_without_one_architecture_is_refused(tmp_path: Path) -> None:
    for number, architectures in enumerate((None, [], ["A", "B"])):
        folder = _folder(tmp_path / str(number), architectures=architectures)
        with pytest.raises(BuildError, match="does not name one architecture") as caught:
            export_folder(folder, tmp_path / "out", silent)
        assert caught.value.found_in == f"{folder / 'config.json'}, architectures"
