"""AMD Quark as another's quantizer, with a stand-in for the environment that has it."""

import sys
from pathlib import Path

import onnx
import pytest

from edgepack.errors import BuildError, ProfileError
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.profiles.reading import load_profile, resolve_profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.candidate_makers import maker_for
from edgepack.packager.quantization.quark.candidate_maker import (
    VARIABLE,
    QuarkCandidateMaker,
    find_quark,
    quark_config,
)
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.target_models import residual_cnn

COPY = """
request = json.load(sys.stdin)
with open("{told}", "w") as file:
    json.dump(request | {{"samples": sorted(os.listdir(request["samples"]))}}, file)
shutil.copy(request["model"], request["output"])
print(json.dumps({{"version": "0.13"}}))
"""


def _settings(**changes: object) -> Quantize:
    entry = {"name": "quantize", "backend": "quark", **changes}
    settings = resolve_profile("vitisai-xint8", {"pass": [entry]}).quantize
    assert settings is not None
    return settings


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is run in place of Quark's interpreter; a test writes its code."""
    path = tmp_path / "python"
    monkeypatch.setenv(VARIABLE, str(path))
    _write(path, "")
    return path


def _write(path: Path, code: str) -> None:
    path.write_text(f"#!{sys.executable}\nimport json, os, shutil, sys, time\n{code}")
    path.chmod(0o755)


def _maker(folder: Path, **changes: object) -> QuarkCandidateMaker:
    target = residual_cnn()
    settings = _settings(**changes)
    make = maker_for(settings)
    maker = make(target.model, settings, target.samples, work_dir=folder, progress=silent)
    assert isinstance(maker, QuarkCandidateMaker)
    return maker


def test_quark_gets_the_model_every_sample_and_the_nodes_that_stay_float(
    stand_in: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told.json"
    _write(stand_in, COPY.format(told=told))
    maker = _maker(tmp_path / "work")
    assert [method.id for method in maker.methods] == ["quark-XINT8"]
    built = maker.build(spec("quark-XINT8", ("stem", "classify")))
    assert '"config": "XINT8"' in told.read_text()
    assert '"exclude": ["classify", "stem"]' in told.read_text()
    assert '"000007.npz"' in told.read_text()
    assert set(built.lowered) == set(maker.names) - {"stem", "classify"}
    assert built.notes == ("Quantized by AMD Quark 0.13, XINT8.",)
    assert isinstance(built.model, onnx.ModelProto)


def test_nodes_are_ranked_by_our_own_quantization_of_the_same_types(
    stand_in: Path, tmp_path: Path
) -> None:
    maker = _maker(tmp_path)
    ranked = maker.rank(spec("quark-XINT8"), residual_cnn().samples, silent)
    assert {cost.name for cost in ranked} == set(maker.names)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("time.sleep(60)", "AMD Quark gave no result: no answer within 1 s"),
        ("os.kill(os.getpid(), 11)", "AMD Quark gave no result: crashed with SIGSEGV"),
        ("sys.exit('no C++ compiler')", "ended with exit code 1: no C\\+\\+ compiler"),
        ("print('{')", "AMD Quark gave no result: its answer cannot be read"),
    ],
)
def test_what_goes_wrong_with_quark_is_a_build_error(
    stand_in: Path, tmp_path: Path, code: str, problem: str
) -> None:
    _write(stand_in, code)
    maker = _maker(tmp_path / "work", backend_timeout_s=1.0)
    with pytest.raises(BuildError, match=problem) as caught:
        maker.build(spec("quark-XINT8"))
    assert str(stand_in) in str(caught.value)


def test_without_quark_the_error_says_how_to_get_it() -> None:
    with pytest.raises(BuildError, match="AMD Quark is not installed here") as caught:
        find_quark({}, lambda name: False)
    assert "pip install amd-quark" in str(caught.value)
    assert VARIABLE in str(caught.value)


def test_an_interpreter_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(BuildError, match=f"{VARIABLE} names no program: /nowhere/python"):
        find_quark({VARIABLE: "/nowhere/python"}, lambda name: True)


def test_quark_in_this_environment_needs_no_variable() -> None:
    assert find_quark({}, lambda name: name == "quark") == sys.executable


@pytest.mark.parametrize(
    ("profile", "config"),
    [("vitisai-xint8", "XINT8"), ("vitisai-a8w8", "A8W8"), ("vitisai-a16w8", "A16W8")],
)
def test_each_amd_profile_has_its_configuration(profile: str, config: str) -> None:
    settings = load_profile(profile).quantize
    assert settings is not None
    assert quark_config(settings) == config


@pytest.mark.parametrize(
    ("base", "problem"),
    [("cpu", "the whole graph, symmetric"), ("vitisai-a8w8", "no configuration with float scales")],
)
def test_types_that_quark_has_no_configuration_for_are_refused(base: str, problem: str) -> None:
    changes = {"name": "quantize", "backend": "quark", "activations": "uint8"}
    with pytest.raises(ProfileError, match=problem):
        resolve_profile(base, {"pass": [changes]})
