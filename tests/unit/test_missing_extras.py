"""A command whose packages are not installed says which extra brings them."""

import sys

import pytest
from click.testing import CliRunner

from edgepack.cli import cli
from edgepack.errors import EdgepackError


@pytest.mark.parametrize(
    ("words", "module", "package", "extra"),
    [
        (["profiles", "show", "cpu"], "edgepack.packager.cli.profiles", "rich", "host"),
        (["compare", "a", "b"], "edgepack.packager.cli.compare", "rich", "host"),
        (["fleet", "devices"], "edgepack.fleet.commands.fleet", "rich", "fleet"),
        (["build", "m.onnx"], "edgepack.packager.cli.build", "onnxruntime", "cpu"),
    ],
)
def test_the_extra_is_that_of_the_command(
    words: list[str], module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Absent:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == module:
                raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, EdgepackError), done.output
    assert done.exception.problem == (
        f"'edgepack {words[0]}' needs the package {package}, which is not installed"
    )
    assert done.exception.remedy == f"pip install 'edgepack[{extra}]'"


def test_a_module_of_our_own_that_is_not_there_stays_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "edgepack.packager.cli.compare":
                raise ModuleNotFoundError("No module named 'edgepack.gone'", name="edgepack.gone")

    monkeypatch.delitem(sys.modules, "edgepack.packager.cli.compare", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    done = CliRunner().invoke(cli, ["compare", "a", "b"])
    assert isinstance(done.exception, ModuleNotFoundError)
