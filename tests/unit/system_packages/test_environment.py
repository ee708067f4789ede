"""Environments for packages: what is installed, what is dropped, which Python."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from system_packages import environment
from system_packages.__main__ import main
from system_packages.environment import (
    PackagingError,
    drop_unused,
    find_python,
    install_wheels,
    installed,
    move_distributions,
    needed_glibc,
    required_names,
)
from system_packages.targets import RELEASES, platform_tags


def distribution(tree: Path, name: str, files: tuple[str, ...], requires: str = "") -> None:
    notes = tree / f"{name}-1.0.dist-info"
    notes.mkdir(parents=True)
    (notes / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}"
    )
    (notes / "direct_url.json").write_text("a path of this machine")
    named = (*files, f"{notes.name}/METADATA", f"{notes.name}/RECORD", "../../bin/program")
    (notes / "RECORD").write_text("".join(f"{file},,\n" for file in named))
    for file in files:
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text("")


def test_a_package_has_what_edgepack_needs_and_the_provider_has_the_rest(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    needed = (
        'Requires-Dist: some_lib>=1\nRequires-Dist: old; python_version < "3"\n'
        'Requires-Dist: onnx; extra == "host"\n'
    )
    distribution(tree, "edgepack", ("edgepack/agent/a.py", "edgepack/fleet/b.py"), needed)
    distribution(tree, "some.lib", ("some/lib.py", "some/tests/t.py", "some/lib.h"))
    distribution(tree, "onnxruntime", ("onnxruntime/c.py", "onnxruntime/tools/d.py"))
    drop_unused(tree)
    assert required_names(tree, "3.11") == {"edgepack", "some-lib"}
    agent = move_distributions(tree, {"edgepack", "some-lib"}, tmp_path / "agent", "3.11")
    provider = move_distributions(tree, {"onnxruntime"}, tmp_path / "provider", "3.11")
    assert {path.name for path in agent.rglob("*") if path.is_file()} == {
        *("a.py", "lib.py", "METADATA", "RECORD")
    }
    assert [path.name for path in provider.rglob("*.py")] == ["c.py"]
    assert "fleet" not in (agent / "edgepack-1.0.dist-info/RECORD").read_text()
    assert installed(tree) == {}


def test_the_oldest_glibc_of_a_package_is_that_of_its_newest_wheel(tmp_path: Path) -> None:
    tags = {
        "a": ("cp311-cp311-manylinux2014_x86_64", "cp311-cp311-manylinux_2_28_x86_64"),
        "b": ("cp311-cp311-manylinux_2_31_x86_64", "cp311-cp311-manylinux_2_34_x86_64"),
        "c": ("py3-none-any",),
    }
    for name, lines in tags.items():
        (tmp_path / f"{name}-1.dist-info").mkdir()
        text = "".join(f"Tag: {tag}\n" for tag in lines)
        (tmp_path / f"{name}-1.dist-info/WHEEL").write_text(text)
    assert needed_glibc(tmp_path) == 31


def test_wheels_for_newer_systems_are_not_taken() -> None:
    tags = platform_tags(RELEASES["3.11"], "arm64")
    assert "manylinux_2_36_aarch64" in tags
    assert "manylinux2014_aarch64" in tags
    assert "manylinux_2_39_aarch64" not in tags


@pytest.mark.parametrize("version", ["3.10", "2.7"])
def test_an_unknown_python_is_rejected_with_the_known(version: str) -> None:
    with pytest.raises(PackagingError, match=r"3\.11, 3\.12, 3\.13"):
        find_python(version)


def test_a_python_that_is_not_installed_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    other, release = ("3.13", "trixie") if sys.version_info[:2] != (3, 13) else ("3.12", "noble")
    with pytest.raises(PackagingError, match=f"python{other} is not installed.* {release}"):
        find_python(other)


def test_a_wheel_with_another_hash_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements").mkdir()
    pinned = tmp_path / "requirements/device-cpu.txt"
    pinned.write_text(f"click==8.5.1 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    with pytest.raises(PackagingError, match="DO NOT MATCH THE HASHES"):
        install_wheels(tmp_path / "none.whl", "3.11", "amd64", tmp_path / "tree")


def test_a_wrong_time_of_the_sources_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    ended = CliRunner().invoke(main, ["--output", str(tmp_path)])
    assert ended.exit_code == 1
    assert "SOURCE_DATE_EPOCH='yesterday'" in ended.output
