"""Debian packages that are written without dpkg; dpkg-deb is the judge."""

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from system_packages.debian import Package, debian_version, write_deb

PACKAGE = Package(
    name="example",
    version="1.2+py311",
    architecture="all",
    depends=("python3.11", "libc6 (>= 2.28)"),
    summary="an example",
    description=("The first sentence.", "The second."),
    scripts={"postinst": "#!/bin/sh\n"},
)


def lay_out(root: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        path = root / "usr/lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
    (root / "usr/lib/b").chmod(0o755)
    (root / "usr/lib/link").symlink_to("b")
    return root


def write(root: Path, folder: Path, maintainer: str = "A <a@example.org>") -> Path:
    folder.mkdir()
    return write_deb(PACKAGE, root, folder, epoch=1_700_000_000, maintainer=maintainer, preset=0)


def test_the_bytes_depend_on_content_alone(tmp_path: Path) -> None:
    first = lay_out(tmp_path / "first", ("b", "a", "c/d"))
    second = lay_out(tmp_path / "second", ("c/d", "b", "a"))
    os.utime(second / "usr/lib/a", (1, 1))
    (second / "usr/lib/c").chmod(0o700)
    os.link(second / "usr/lib/a", tmp_path / "other name")
    written = [write(root, tmp_path / f"out-{root.name}") for root in (first, second)]
    assert written[0].read_bytes() == written[1].read_bytes()
    (second / "usr/lib/a").write_text("other content")
    assert write(second, tmp_path / "third").read_bytes() != written[0].read_bytes()


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg is not installed")
def test_dpkg_reads_fields_owners_and_modes(tmp_path: Path) -> None:
    path = write(lay_out(tmp_path / "root", ("a", "b")), tmp_path / "out")
    assert path.name == "example_1.2+py311_all.deb"
    fields = run("--field", path)
    assert "Depends: python3.11, libc6 (>= 2.28)" in fields
    assert "Description: an example\n The first sentence.\n The second." in fields
    listed = [line.split() for line in run("--contents", path).splitlines()]
    modes = {" ".join(words[5:]): (words[0], words[1]) for words in listed}
    assert modes["./usr/lib/a"] == ("-rw-r--r--", "root/root")
    assert modes["./usr/lib/b"] == ("-rwxr-xr-x", "root/root")
    assert modes["./usr/lib/link -> b"] == ("lrwxrwxrwx", "root/root")
    run("--raw-extract", path, tmp_path / "x")
    assert (tmp_path / "x/usr/lib/a").read_text() == "content of a\n"
    assert (tmp_path / "x/DEBIAN/postinst").stat().st_mode & 0o777 == 0o755
    sums = ["md5sum", "--check", "--quiet", "DEBIAN/md5sums"]
    subprocess.run(sums, cwd=tmp_path / "x", check=True)


@pytest.mark.skipif(not shutil.which("dpkg"), reason="dpkg is not installed")
def test_versions_sort_as_releases_follow() -> None:
    wheels = ("1.2.0.dev1", "1.2.0a1", "1.2.0rc2", "1.2.0", "1.2.1")
    versions = [debian_version(wheel, "3.11") for wheel in wheels]
    assert versions[3] == "1.2.0+py311"
    for older, newer in itertools.pairwise(versions):
        subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


def run(*words: str | Path) -> str:
    return subprocess.run(["dpkg-deb", *words], check=True, capture_output=True, text=True).stdout
