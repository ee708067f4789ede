"""`edgepack.fleet`: the names that programs rely on."""

import inspect
import subprocess
import sys

import pytest

import edgepack.fleet
from edgepack.fleet import FleetClient


def test_the_package_loads_nothing_before_a_name_is_used() -> None:
    script = (
        "import sys; before = set(sys.modules); import edgepack.fleet; "
        "new = {name.split('.')[0] for name in sys.modules.keys() - before}; "
        "print(new - sys.stdlib_module_names, 'edgepack.errors' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{'edgepack'} False"


def test_asking_a_fleet_loads_neither_its_server_nor_its_tables() -> None:
    heavy = ("sqlalchemy", "starlette", "uvicorn", "iotcore", "rich", "click", "onnxruntime")
    script = (
        "import sys; from edgepack.fleet import FleetClient; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", edgepack.fleet.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(edgepack.fleet, name))
    assert name in dir(edgepack.fleet)


def test_a_name_that_is_not_there_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'edgepack.fleet' has no attribute 'Fleat'"):
        _ = edgepack.fleet.Fleat  # type: ignore[attr-defined]


PUBLIC = [name for name in dir(FleetClient) if not name.startswith("_")]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_method_says_what_it_takes_gives_and_raises(name: str) -> None:
    method = getattr(FleetClient, name)
    text = inspect.getdoc(method) or ""
    takes = [word for word in inspect.signature(method).parameters if word != "self"]
    assert ("Args:" in text) == bool(takes)
    assert all(f"    {word}: " in text for word in takes)
    assert "Returns:" in text or "Yields:" in text
    assert "Raises:" in text
    assert "Example:" in text
