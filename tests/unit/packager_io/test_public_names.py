"""`edgepack.packager` for scripts: its names, cheap to import, and ONNX Runtime tells nobody."""

import os
import subprocess
import sys

import edgepack.packager


def run_python(code: str, **variables: str) -> str:
    hidden = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=hidden | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_importing_the_package_loads_no_library() -> None:
    said = run_python(
        "import sys, edgepack.packager; "
        "heavy = {'numpy', 'msgspec', 'onnx', 'onnxruntime', 'rich', 'jinja2'}; "
        "names = edgepack.packager.__all__; "
        "print(heavy & set(sys.modules), set(names) - set(dir(edgepack.packager)))"
    )
    assert said == "set() set()\n"


def test_every_public_name_is_there_and_documented() -> None:
    for name in edgepack.packager.__all__:
        assert (getattr(edgepack.packager, name).__doc__ or "").strip(), name


def test_telemetry_is_off_wherever_the_packager_may_load_onnx_runtime() -> None:
    code = "import os, edgepack.packager; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert run_python(code) == "1\n"
    assert run_python(code, ORT_DISABLE_TELEMETRY="0") == "0\n", "the user's own value stays"
