"""Wheels for a board, chosen by the tags in their names."""

from pathlib import Path

from edgepack.packager.boards.wheels import choose_wheels

_WHEELS = (
    "msgspec-0.22.0-cp311-cp311-manylinux_2_28_aarch64.whl",
    "msgspec-0.21.9-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
    "msgspec-0.22.0-cp312-cp312-manylinux_2_28_aarch64.whl",
    "msgspec-0.22.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "msgspec-0.22.0-cp311-cp311-musllinux_1_2_aarch64.whl",
    "numpy-2.3.1-1-cp311-cp311-manylinux_2_28_aarch64.whl",
    "crypto-44.0-cp37-abi3-manylinux_2_28_aarch64.whl",
    "crypto-45.0-cp312-abi3-manylinux_2_28_aarch64.whl",
    "flatbuffers-25.1-py2.py3-none-any.whl",
    "notes.whl",
)


def _chosen(folder: Path, python: tuple[int, int], machine: str, libc: str) -> list[str]:
    for name in _WHEELS:
        (folder / name).touch()
    return sorted(path.name for path in choose_wheels(folder, python, machine, libc))


def test_newest_wheel_of_each_package_for_python_machine_and_libc(tmp_path: Path) -> None:
    assert _chosen(tmp_path, (3, 11), "aarch64", "glibc") == [
        "crypto-44.0-cp37-abi3-manylinux_2_28_aarch64.whl",
        "flatbuffers-25.1-py2.py3-none-any.whl",
        "msgspec-0.22.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "numpy-2.3.1-1-cp311-cp311-manylinux_2_28_aarch64.whl",
    ]


def test_musl_gets_no_wheel_of_glibc(tmp_path: Path) -> None:
    assert _chosen(tmp_path, (3, 11), "aarch64", "musl") == [
        "flatbuffers-25.1-py2.py3-none-any.whl",
        "msgspec-0.22.0-cp311-cp311-musllinux_1_2_aarch64.whl",
    ]


def test_no_folder_has_no_wheels(tmp_path: Path) -> None:
    assert choose_wheels(None, (3, 11), "aarch64", "glibc") == ()
    assert choose_wheels(tmp_path / "missing", (3, 11), "aarch64", "glibc") == ()
