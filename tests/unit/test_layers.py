"""No two packages import each other, directly or around, at any depth; and `make check` says so."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOTS = {
    "edgepack.packager": REPOSITORY / "packager/edgepack/packager",
    "edgepack.agent": REPOSITORY / "agent/edgepack/agent",
    "edgepack.fleet": REPOSITORY / "fleet/edgepack/fleet",
}

LINT = """
import sys
sys.path[:] = sys.argv[1:]
from importlinter.cli import lint_imports_command
lint_imports_command(["--no-cache"])
"""


def imports_of(source: str) -> Iterator[str]:
    """What a module imports, wherever in it: modules, and names that may be modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_below(name: str, folder: Path) -> dict[str, set[str]]:
    """What each module below a package imports of the modules below it."""
    files = {
        ".".join((name, *file.relative_to(folder).with_suffix("").parts)): file
        for file in folder.rglob("*.py")
        if file.name != "__init__.py"
    }
    return {
        module: {
            known
            for imported in imports_of(file.read_text())
            for known in files
            if imported == known or imported.startswith(f"{known}.")
        }
        for module, file in files.items()
    }


def circles(modules: dict[str, set[str]]) -> list[str]:
    """Packages whose children import each other, with the circle."""
    parents = {module.rsplit(".", depth)[0] for module in modules for depth in range(1, 6)}
    found = []
    for parent in sorted(parents):
        depth = parent.count(".") + 2
        children: dict[str, set[str]] = {}
        for module, imported in modules.items():
            if not module.startswith(f"{parent}."):
                continue
            child = ".".join(module.split(".")[:depth])
            others = {
                ".".join(other.split(".")[:depth])
                for other in imported
                if other.startswith(f"{parent}.")
            }
            children.setdefault(child, set()).update(others - {child})
        try:
            TopologicalSorter(children).prepare()
        except CycleError as error:
            found.append(f"{parent}: {' <- '.join(error.args[1])}")
    return found


@pytest.mark.parametrize("name", ROOTS)
def test_no_two_packages_import_each_other(name: str) -> None:
    modules = modules_below(name, ROOTS[name])
    assert len(modules) > 20
    assert any(modules.values())
    assert circles(modules) == []


def test_a_circle_around_a_third_package_is_found() -> None:
    modules = {"r.a.x": {"r.b.y"}, "r.b.y": {"r.c.z"}, "r.c.w": {"r.a.v"}, "r.a.v": set()}
    assert circles(modules | {"r.c.z": set()}) == ["r: r.a <- r.c <- r.b <- r.a"]


@pytest.mark.parametrize(
    ("file", "planted", "contract"),
    [
        (
            "packager/edgepack/packager/tensors/spec.py",
            "edgepack.packager.gates.verdict",
            "the packager's folders are layers",
        ),
        (
            "packager/edgepack/packager/quantization/dynamic/nodes.py",
            "edgepack.packager.quantization.static.scales",
            "the quantizers share one contract, and do not know each other",
        ),
        (
            "fleet/edgepack/fleet/documents/devices.py",
            "edgepack.fleet.rollouts.waves",
            "the folders of the fleet are layers",
        ),
        (
            "agent/edgepack/wire/topics.py",
            "edgepack.agent.runtime.facts",
            "imports go one way: host -> agent -> trust -> wire -> bundle",
        ),
    ],
)
def test_make_check_refuses_a_planted_import(
    file: str, planted: str, contract: str, tmp_path: Path
) -> None:
    roots = ("agent", "packager", "fleet", "profiles", "firmware_hooks")
    for root in roots:
        shutil.copytree(
            REPOSITORY / root, tmp_path / root, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    with (tmp_path / file).open("a") as module:
        module.write(f"\nimport {planted}\n")
    # An editable install's folders are on the path too, and would be looked at in place of these.
    elsewhere = [entry for entry in sys.path if Path(entry).parent != REPOSITORY]
    done = subprocess.run(
        [sys.executable, "-c", LINT, *(str(tmp_path / root) for root in roots), *elsewhere],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout


def test_an_agent_that_asks_no_web_server_loads_no_library_for_it() -> None:
    program = (
        "import sys, edgepack.agent.cli.assembly; "
        "print(*({'urllib3', 'websockets', 'tuf'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=400
    )
    assert done.stdout.strip() == ""


def test_a_command_that_asks_the_fleet_loads_no_library_for_databases() -> None:
    program = (
        "import sys, edgepack.fleet.commands.rollout, edgepack.fleet.commands.publishing; "
        "import edgepack.fleet.commands.fleet, edgepack.fleet.client.fleet_client; "
        "print(*({'sqlalchemy', 'uvicorn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=400
    )
    assert done.stdout.strip() == ""
