"""`edgepack.agent` for applications: its names, cheap to import, typed, with examples that run."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import edgepack.agent
from tests.simulators.pointers import write_pointer
from tests.simulators.text_bundles import install_texts, make_text_bundle
from tests.unit.agent_runtime.documented import install_documented

DOCUMENTED = {
    name: getattr(edgepack.agent, name) for name in edgepack.agent.__all__ if name != "Tensor"
} | {f"Model.{name}": getattr(edgepack.agent.Model, name) for name in ("generate", "run")}

TEXTS = ("GeneratedText", "Generation", "TextPiece", "Model.generate")


def run_python(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_importing_the_package_loads_no_library() -> None:
    said = run_python(
        "-c",
        "import sys, edgepack.agent; "
        "heavy = {'numpy', 'msgspec', 'onnxruntime', 'paho', 'cryptography'}; "
        "print(heavy & set(sys.modules), set(edgepack.agent.__all__) - set(dir(edgepack.agent)))",
    )
    assert said == "set() set()\n"


def test_naming_everything_loads_no_onnxruntime() -> None:
    said = run_python(
        "-c",
        "import sys; from edgepack.agent import *; print(open_model, 'onnxruntime' in sys.modules)",
    )
    assert said.startswith("<function open_model")
    assert said.endswith("False\n")


def test_a_name_that_is_not_there_is_an_error_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'open_modell'"):
        edgepack.agent.open_modell  # type: ignore[attr-defined]  # noqa: B018


def test_a_type_checker_knows_the_names_in_an_application_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(
        "from edgepack.agent import DeviceError, Model, Tensor, open_model\n"
        "reveal_type(open_model('x').bundle.version)\n"
        "reveal_type(DeviceError('x').remedy)\n"
        "def run(model: Model, x: Tensor) -> int:\n"
        "    return model.run({'x': x})\n"
        "edgepack_has_no_such_name = DeviceError('x').remedys\n"
    )
    settings = ("--config-file=", "--cache-dir", str(tmp_path / "cache"), "--strict")
    said = run_python("-m", "mypy", *settings, str(tmp_path / "application.py"))
    assert 'Revealed type is "str"' in said
    assert 'Revealed type is "str | None"' in said
    assert "5: error: Incompatible return value type" in said
    assert '6: error: "DeviceError" has no attribute "remedys"' in said
    assert "Found 2 errors" in said


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_has_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pointer(tmp_path, install_documented(tmp_path, tmp_path))
    if name in TEXTS:
        write_pointer(tmp_path, install_texts(tmp_path, make_text_bundle(tmp_path / "bundle")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEPACK_STATE_DIR", str(tmp_path))
    (example,) = re.findall(r"```python\n(.*?)\n *```", DOCUMENTED[name].__doc__ or "", re.S)
    exec(compile(textwrap.dedent(example), name, "exec"), {})
