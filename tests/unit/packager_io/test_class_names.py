"""Names of classes: declared, or read from the model's metadata, which strangers wrote."""

from pathlib import Path

import pytest
from onnx import helper

from edgepack.errors import BuildError
from edgepack.packager.config.build_file import read_config
from edgepack.packager.config.outputs import OutputDeclaration, check_outputs
from edgepack.packager.graph.class_names import read_class_names
from edgepack.packager.source.model import load_source
from edgepack.packager.tasks.class_names import with_class_names
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.description import ModelDescription, TaskOutputs
from tests.unit.packager_io.models import save, small_cnn

TEN = tuple(f"kind {number}" for number in range(10))
SCORES = TensorSpec(name="scores", dtype="float32", shape=(1, 10))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{0: 'cat', 1: 'dog'}", ("cat", "dog")),
        ("{1: 'dog', 0: 'cat'}", ("cat", "dog")),
        ("['cat', 'dog']", ("cat", "dog")),
        ("{0: 'a\\n b\\x1b'}", ("a b\\x1b",)),
        ("{0: '" + "x" * 300 + "'}", ("x" * 100,)),
        ("{1: 'cat', 2: 'dog'}", ()),
        ("{0: 1}", ()),
        ("__import__('os').abort()", ()),
        ("[" * 9_999, ()),
        ("[" + "'a'," * 100_000 + "]", ()),
        ("", ()),
    ],
)
def test_names_of_metadata_are_bounded_and_nothing_is_run(
    text: str, names: tuple[str, ...]
) -> None:
    assert read_class_names({"names": text}) == names


def named(
    folder: Path, metadata: object, declared: tuple[str, ...] = (), task: str = "classification"
) -> tuple[str, ...]:
    model = small_cnn(batch=1)
    helper.set_model_props(model, {"names": str(metadata)})
    save(model, folder / "small.onnx")
    declarations = {"scores": OutputDeclaration(task=task, class_names=declared)}
    part = TaskOutputs(task=task, outputs=("scores",))
    source = load_source(folder / "small.onnx")
    (found,) = with_class_names(ModelDescription(parts=(part,)), source, declarations).parts
    return found.class_names


def test_declared_names_count_before_the_metadatas(tmp_path: Path) -> None:
    assert named(tmp_path, TEN) == TEN
    other = tuple(name.upper() for name in TEN)
    assert named(tmp_path, TEN, other) == other


def test_names_of_another_number_are_not_used_and_classes_may_share_one(tmp_path: Path) -> None:
    assert named(tmp_path, TEN[:9]) == ()
    assert named(tmp_path, ["crane", *TEN[1:9], "crane"]) == ("crane", *TEN[1:9], "crane")
    assert named(tmp_path, TEN, task="embedding") == ()


def test_the_file_declares_names(tmp_path: Path) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text('[outputs.scores]\ntask = "classification"\nclass_names = ["a", "b"]\n')
    assert read_config(path).outputs["scores"].class_names == ("a", "b")
    path.write_text('[outputs.scores]\ntask = "classification"\nclass_names = ["a\\u001b"]\n')
    with pytest.raises(BuildError, match="class_names"):
        read_config(path)


def test_characters_of_a_text_may_be_spaces_of_any_width() -> None:
    names = ("", "\u3000", *TEN[:7], " ")  # the list of PP-OCRv5 begins so
    check_outputs({"scores": OutputDeclaration(task="text", class_names=names)}, (SCORES,))
    others = OutputDeclaration(task="threshold", class_names=("\u3000", *TEN[1:]))
    with pytest.raises(BuildError, match="u3000"):
        check_outputs({"scores": others}, (SCORES,))


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (OutputDeclaration(task="classification", class_names=TEN[:9]), "9 names"),
        (OutputDeclaration(task="classification", class_names=("a",) * 10), "'a' more than once"),
        (OutputDeclaration(task="classification", class_names=("", *TEN[1:])), "''"),
        (OutputDeclaration(task="classification", class_names=(*TEN[1:], "\u202e")), "u202e"),
        (OutputDeclaration(task="embedding", class_names=TEN), "'class_names'"),
    ],
)
def test_names_that_do_not_fit_are_rejected(declared: OutputDeclaration, problem: str) -> None:
    with pytest.raises(BuildError, match=problem):
        check_outputs({"scores": declared}, (SCORES,))
