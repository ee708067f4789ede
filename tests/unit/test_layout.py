"""The layout that everything else relies on."""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_edgepack_is_a_namespace_so_that_each_root_can_add_to_it() -> None:
    spec = importlib.util.find_spec("edgepack")
    assert spec is not None
    assert spec.origin is None


def test_no_root_has_an_init_directly_under_edgepack() -> None:
    assert list(ROOT.glob("*/edgepack/__init__.py")) == []


def test_the_agent_command_imports_no_host_package() -> None:
    heavy = ("onnx", "onnxruntime", "torch", "sqlalchemy", "starlette", "rich", "jinja2")
    script = (
        "import sys, edgepack.agent.cli; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
