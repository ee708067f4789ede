"""Declared meanings of outputs: parsed, checked, and used for the verdict."""

from pathlib import Path

import numpy as np
import pytest

from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.config.build_file import read_config
from edgepack.packager.config.outputs import OutputDeclaration, check_outputs, declared_parts
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import ModelDescription, TaskOutputs

_FACE = TensorSpec(name="face", dtype="float32", shape=(1, 64))
_AGE = TensorSpec(name="age", dtype="float32", shape=(1, 1))
_LABEL = TensorSpec(name="label", dtype="int64", shape=(1, 20))


def _declared(task: str) -> OutputDeclaration:
    return OutputDeclaration(task=task)


def _described(name: str, task: str) -> ModelDescription:
    return ModelDescription(parts=declared_parts({name: _declared(task)}))


def _faces(noise: float, *, shift: float = 0.0) -> tuple[list[Outputs], list[Outputs]]:
    """Return vectors of several lengths, and the same with noise and a common shift."""
    rng = np.random.default_rng(0)
    faces = [rng.normal(0, 2, (1, 64)) for _ in range(20)]
    return (
        [{"face": face} for face in faces],
        [{"face": face + shift + rng.normal(0, noise, (1, 64))} for face in faces],
    )


def test_the_file_says_what_outputs_mean(tmp_path: Path) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text('[outputs.face]\ntask = "embedding"\n[outputs.age]\ntask = "ignored"\n')
    assert declared_parts(read_config(path).outputs) == (
        TaskOutputs(task="embedding", outputs=("face",), source="declared"),
        TaskOutputs(task="ignored", outputs=("age",), source="declared"),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[outputs.face]\n", "outputs.face lacks 'task'"),
        ('[outputs.face]\ntask = "values"\nunit = "m"\n', "unknown key 'unit'"),
    ],
)
def test_nonsense_is_refused_with_the_key_and_the_choices(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text(text)
    with pytest.raises(BuildError) as refused:
        read_config(path)
    assert problem in refused.value.problem


@pytest.mark.parametrize("tolerance", ["0", "-1", "nan", "inf", "1e-300", "1e300"])
def test_a_tolerance_without_a_use_is_rejected(tmp_path: Path, tolerance: str) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text(f'[outputs.age]\ntask = "values"\ntolerance = {tolerance}\n')
    with pytest.raises(BuildError, match=r"outputs\.age\.tolerance must be"):
        read_config(path)


def test_a_section_and_its_key_in_one_line_are_written_in_two(tmp_path: Path) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text("[model]\nname = 'ocr'\n[outputs.age] task = 'values'\n")
    with pytest.raises(BuildError) as refused:
        read_config(path)
    assert refused.value.remedy == "write [outputs.age] and task = 'values' in lines of their own"


def test_a_section_of_a_profile_is_sent_to_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text("[gates.accuracy.values]\nkeep = 0.98\n")
    with pytest.raises(BuildError) as refused:
        read_config(path)
    assert "unknown key 'gates'" in refused.value.problem
    assert "--profile mine.toml" in str(refused.value)


def test_lists_that_are_nested_too_deeply_are_called_so(tmp_path: Path) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text(f"x = {'[' * 5000}{']' * 5000}\n")
    for read in (read_config, lambda path: load_profile(str(path))):
        with pytest.raises(EdgepackError) as refused:
            read(path)
        assert "nested too deeply" in refused.value.problem
        assert "recursion" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "task", "problem"),
    [
        ("fase", "values", "the model has no output 'fase'; it has face, age, label"),
        ("age", "embedding", "has no row of numbers along its last axis, and embedding are one"),
        ("age", "classification", "has no row of numbers along its last axis, and classification"),
        ("age", "tokens", "has no row of numbers along its last axis, and tokens are one"),
        ("label", "embedding", "output 'label' holds int64: embedding are floats"),
        ("face", "segmentation", "float32[1,64] is too small for segmentation"),
        ("age", "sound", "is too small for sound, which needs 64 values"),
    ],
)
def test_a_meaning_that_an_output_cannot_have_is_refused(
    name: str, task: str, problem: str
) -> None:
    with pytest.raises(BuildError) as refused:
        check_outputs({name: _declared(task)}, (_FACE, _AGE, _LABEL))
    assert problem in refused.value.problem
    assert refused.value.found_in == f"outputs.{name}"


def test_an_unknown_task_is_refused_with_the_one_that_was_meant_and_all_others() -> None:
    with pytest.raises(BuildError) as refused:
        check_outputs({"face": _declared("embeding")}, (_FACE,))
    assert "no task 'embeding'; tasks are classification, probabilities" in refused.value.problem
    assert refused.value.remedy == 'task = "embedding"'


@pytest.mark.parametrize(("task", "remedy"), [("own", "--metric"), ("zzzz", "leave the section")])
def test_a_task_that_is_like_no_other_gets_no_proposal(task: str, remedy: str) -> None:
    with pytest.raises(BuildError) as refused:
        check_outputs({"face": _declared(task)}, (_FACE,))
    assert (refused.value.remedy or "").startswith(remedy)


def test_an_input_that_the_model_lacks_cannot_take_tokens() -> None:
    declared = OutputDeclaration(task="tokens", tokens="idz")
    inputs = tuple(TensorSpec(name=name, dtype="int64", shape=(1, 8)) for name in ("ids", "mask"))
    with pytest.raises(BuildError, match="no input 'idz'; it has ids, mask") as refused:
        check_outputs({"face": declared}, (_FACE,), inputs)
    assert refused.value.remedy == 'tokens = "ids"'


def test_an_input_of_floats_takes_no_tokens() -> None:
    declared = OutputDeclaration(task="tokens", tokens="face")
    with pytest.raises(BuildError, match="input 'face' holds float32") as refused:
        check_outputs({"face": declared}, (_FACE,), (_FACE,))
    assert refused.value.found_in == "outputs.face"


def test_the_name_that_was_meant_is_proposed_as_toml_wants_it() -> None:
    dotted = TensorSpec(name="head/face.0", dtype="float32", shape=(1, 64))
    with pytest.raises(BuildError) as refused:
        check_outputs({"head/face": _declared("embedding")}, (dotted, _AGE))
    assert refused.value.remedy == '[outputs."head/face.0"]'
    assert refused.value.found_in == 'outputs."head/face"'


def test_one_output_at_least_must_count() -> None:
    with pytest.raises(BuildError, match="every output is ignored"):
        check_outputs({"face": _declared("ignored")}, (_FACE,))
    check_outputs({"face": _declared("ignored")}, (_FACE, _AGE))


def test_an_embedding_is_judged_by_its_neighbours_and_not_by_its_highest_number() -> None:
    expected, got = _faces(0.05, shift=1.0)
    assert Reference(expected, {}).judge(got).metric == "explained_within_samples"
    verdict = Reference(expected, {}, _described("face", "embedding")).judge(got)
    assert verdict.metric == "neighbourhood"
    assert verdict.value > 0.999, "what all vectors share moves none among its neighbours"


def test_declared_values_are_judged_by_their_variance() -> None:
    expected, got = _faces(0.05, shift=1.0)
    verdict = Reference(expected, {}, _described("face", "values")).judge(got)
    assert verdict.metric == "explained_by_column"
    assert verdict.value < 0.8


def test_declared_scores_stay_scores_however_alike_the_decisions_are() -> None:
    expected: list[Outputs] = [{"y": np.array([[9.0, n / 20]])} for n in range(20)]
    got: list[Outputs] = [{"y": np.array([[9.0, 0.0]])}] * 20
    assert Reference(expected, {}).judge(got).metric != "top1_agreement"
    verdict = Reference(expected, {}, _described("y", "classification")).judge(got)
    assert (verdict.metric, verdict.value) == ("top1_agreement", 1.0)


def test_an_ignored_output_counts_in_nothing() -> None:
    expected, got = _faces(0.0)
    debug = [{"debug": np.full((1, 3), value)} for value in (1.0, -5.0)]
    reference = Reference(
        [{**sample, **debug[0]} for sample in expected],
        {},
        _described("debug", "ignored"),
    )
    given = [{**sample, **debug[1]} for sample in got]
    assert reference.judge(given).passed
    assert [error.output for error in reference.errors(given)] == ["face"], "no device is asked"
