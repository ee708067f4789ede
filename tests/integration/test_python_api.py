"""`edgepack.packager` in Python: features of the command line, with arrays and functions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.errors import BuildError
from edgepack.packager import BuildResult, build, compare, load_profile
from edgepack.packager.bundling import rehearse
from edgepack.packager.cli.build import build as build_command
from edgepack.packager.config.trusted_code import TrustedCode
from edgepack.packager.pipeline.build_options import BuildOptions
from edgepack.packager.pipeline.request import derive_request
from edgepack.packager.runtime.model_run import Run
from edgepack.tasks.arrays import Tensor
from edgepack.wire.reports import ProbeResult
from tests.unit.packager_io.models import save, small_cnn


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a model and a key."""
    made = tmp_path_factory.mktemp("api")
    save(small_cnn(), made / "net.onnx")
    write_key_pair(generate_key(), made / "release")
    return made


def _arrays(count: int) -> Iterator[dict[str, Tensor]]:
    generator = np.random.default_rng(7)
    for _ in range(count):
        yield {"images": generator.standard_normal((1, 3, 8, 8)).astype(np.float32)}


def _build(folder: Path, output: str, **options: Any) -> BuildResult:
    return build(
        folder / "net.onnx",
        **{
            "profiles": ["cpu"],
            "key": folder / "release.key",
            "output": folder / output,
            "calibration": _arrays(48),
            **options,
        },
    )


def test_arrays_give_the_bytes_that_files_of_the_same_arrays_give(folder: Path) -> None:
    (folder / "samples").mkdir()
    for number, sample in enumerate(_arrays(48)):
        np.savez(folder / "samples" / f"{number:04d}.npz", images=sample["images"])
    told: list[tuple[object, ...]] = []
    first = _build(folder, "net-1.0.0", progress=lambda *words: told.append(words))
    second = _build(folder, "net-again", calibration=folder / "samples", version="1.0.0")
    assert told, "progress was told of"
    assert first.variants.keys() == second.variants.keys() == {"cpu"}
    assert first.variants["cpu"].accuracy == second.variants["cpu"].accuracy
    assert first.refused == ()
    comparison = compare(first.output, second.output)
    assert comparison.equal_for_devices


def test_a_metric_may_be_a_function(folder: Path) -> None:
    asked: list[int] = []

    def score(run: Run) -> float:
        asked.append(len(list(map(run, _arrays(3)))))
        return 0.5

    result = _build(folder, "metric-1.0.0", metric=score)
    assert asked
    assert result.variants["cpu"].accuracy.float_value == 0.5
    assert "score" in result.variants["cpu"].accuracy.metric


def test_a_profile_that_refuses_is_in_the_result_where_others_are_built(folder: Path) -> None:
    strict = folder / "strict.toml"
    strict.write_text(
        '[profile]\nname = "strict"\nextends = "qnn-htp"\n[gates]\nsize_ratio_max = 0.0001\n'
    )
    result = _build(folder, "two-1.0.0", profiles=[strict, "cpu"], keep_going=True)
    assert [entry.profile for entry in result.refused] == ["strict"]
    assert set(result.variants) == {"cpu"}
    assert load_profile(str(strict)).gates.size_ratio_max == 0.0001


def test_a_variant_that_fails_its_rehearsal_is_left_out_where_others_are_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = rehearse._probe

    def fail(*arguments: Any) -> ProbeResult:
        found = probe(*arguments)
        return replace(found, right=found.variant != "cpu", because="wrong here")

    monkeypatch.setattr(rehearse, "_probe", fail)
    with pytest.raises(BuildError, match="'cpu' fails its rehearsal: wrong here"):
        _build(folder, "none-1.0.0", profiles=["fp32", "cpu"])
    assert not (folder / "none-1.0.0").exists()
    result = _build(folder, "left-1.0.0", profiles=["fp32", "cpu"], keep_going=True)
    assert [(entry.profile, "wrong here" in entry.problem) for entry in result.refused] == [
        ("cpu", True)
    ]
    assert set(result.variants) == {"fp32"}
    assert {path.name for path in (folder / "left-1.0.0" / "model").iterdir()} == {"fp32"}


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        ([], "the iterable of samples is empty"),
        ([np.zeros(3)], "sample 0 is a ndarray, not arrays by input name"),
        ([{"images": np.array([object()])}], "sample 0 has no numbers for input 'images'"),
    ],
)
def test_samples_that_are_no_arrays_are_refused_by_number(
    samples: list[Any], problem: str, folder: Path
) -> None:
    with pytest.raises(BuildError) as caught:
        _build(folder, "bad-1.0.0", calibration=samples)
    assert caught.value.problem == problem
    assert caught.value.remedy
    assert not (folder / "bad-1.0.0").exists()


def test_a_file_stands_in_for_options_that_are_left_out(folder: Path) -> None:
    config = folder / "edgepack.toml"
    config.write_text('[model]\nname = "named"\nversion = "3.2.1"\n[build]\nprofiles = ["fp32"]\n')
    result = _build(folder, "of-a-file", config=config, profiles=[], version="4.0.0")
    assert (result.report.name, result.report.version) == ("named", "4.0.0")
    assert set(result.variants) == {"fp32"}


@pytest.mark.parametrize(
    ("output", "options", "problem"),
    [
        ("named-2.0.0", {}, "the version is 2.0.0 by the output's name, and 3.2.1 by "),
        ("other-3.2.1", {}, "the name is other by the output's name, and named by "),
        ("named-2.0.0", {"version": "4.0.0"}, "is 2.0.0 by the output's name, and 4.0.0 by --vers"),
        ("named-4.0.0", {"version": "4.0.0"}, ""),
        ("anything", {"version": "4.0.0"}, ""),
        ("named-3.2.1", {}, ""),
        ("anything", {}, ""),
    ],
)
def test_an_output_name_that_contradicts_the_file_is_refused(
    output: str, options: BuildOptions, problem: str, tmp_path: Path
) -> None:
    config = tmp_path / "edgepack.toml"
    config.write_text('[model]\nname = "named"\nversion = "3.2.1"\n')
    given: BuildOptions = {"output": tmp_path / output, "config": config, "key": "k", **options}
    if not problem:
        request = derive_request("m.onnx", given)
        assert (request.name, request.version) == ("named", options.get("version", "3.2.1"))
        return
    with pytest.raises(BuildError, match=problem) as caught:
        derive_request("m.onnx", given)
    remedy = caught.value.remedy or ""
    assert remedy.startswith(
        ("remove version from", "correct one of them", "give the version once")
    )


def test_what_is_preferred_comes_from_the_option_or_else_from_the_file(tmp_path: Path) -> None:
    config = tmp_path / "edgepack.toml"
    config.write_text('[build]\nprefer = "size"\n')
    given: BuildOptions = {"output": tmp_path / "m-1.0.0", "config": config, "key": "k"}
    assert derive_request("m.onnx", given).prefer == "size"
    assert derive_request("m.onnx", {**given, "prefer": "speed"}).prefer == "speed"


def test_the_command_line_has_every_option_of_the_function_with_its_help() -> None:
    found = {each.name: each for each in build_command.params if isinstance(each, click.Option)}
    assert set(found) - {"as_json"} == set(BuildOptions.__annotations__)
    for name, hint in BuildOptions.__annotations__.items():
        kind, declared = get_args(hint)
        assert found[name].help == declared.help
        assert found[name].is_flag == (kind in (bool, TrustedCode))


def test_a_result_is_plain_data(folder: Path) -> None:
    result = _build(folder, "plain-1.0.0", profiles=["fp32"], budget=60)
    assert msgspec.json.decode(msgspec.json.encode(result.report))["name"] == "plain"
    assert result.report_json.read_bytes()
