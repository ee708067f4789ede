"""The packages on a Debian under a real systemd: installed, set up, upgraded, removed, purged."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.enrolment.package import write_package
from edgepack.agent.service.installation import UNIT
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from tests.simulators.bundles import WIDTH, expected_output, make_bundle
from tests.simulators.debian_machine import DebianMachine
from tests.simulators.enrolled import make_package
from tests.simulators.systemd_machine import SystemdMachine, booted, why_not
from tests.simulators.waiting import wait_until

APT = ("apt-get", "--quiet", "--yes", "--no-install-recommends")
LIMIT_KB = 80_000_000 // 1024
"""A board has little room: the agent without a provider takes at most 80 MB."""


@pytest.fixture
def machine(tmp_path: Path, debian_root: Path) -> Iterator[DebianMachine]:
    if because := why_not():
        pytest.skip(because)
    machine = DebianMachine(tmp_path / "machine", debian_root)
    with booted(machine):
        yield machine


def field(package: Path, name: str) -> str:
    words = ["dpkg-deb", "--field", str(package), name]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def is_active(machine: SystemdMachine) -> bool:
    return machine.show(UNIT, "ActiveState") == "active"


def test_a_board_is_served_by_the_packages_and_purge_leaves_nothing(
    tmp_path: Path, machine: DebianMachine, built: Path, architecture: str
) -> None:
    private, public = write_key_pair(generate_key(), tmp_path / "release")
    bundle = make_bundle(tmp_path / "one", load_private_key(private))
    packages = sorted(built.glob(f"*_{architecture}.deb"))
    assert [field(one, "Package") for one in packages] == ["edgepack-agent-cpu", "edgepack-agent"]
    assert int(field(packages[1], "Installed-Size")) <= LIMIT_KB
    for one in packages:
        shutil.copy(one, machine.root / "root")
    places = [f"/root/{one.name}" for one in packages]
    before = machine.files()

    # The first of two commands. Without settings the service has nothing to run, which is no error.
    machine.run(*APT, "install", *places)
    assert machine.run("edgepack-agent", "--version").stdout.startswith("edgepack-agent, version")
    assert machine.run("dpkg", "--verify", "edgepack-agent", "edgepack-agent-cpu").stdout == ""
    assert machine.run("systemctl", "is-enabled", UNIT).stdout == "enabled\n"
    assert not is_active(machine)

    # What the owner adds belongs to the environment of the agent.
    added = machine.root / "usr/local/lib/edgepack"
    added.mkdir()
    (added / "plug_in.py").write_text("print('from the owner')")
    environment = ("/usr/lib/edgepack/bin/python", "-I", "-B", "-c", "import plug_in")
    assert machine.run(*environment).stdout == "from the owner\n"
    shutil.rmtree(added)

    # The second command.
    write_package(machine.root / "root/cam-1.enrol", make_package(tmp_path / "pki", public))
    machine.run("edgepack-agent", "setup", "/root/cam-1.enrol")
    assert is_active(machine)

    # A bundle from a stick, used by another user.
    shutil.copytree(bundle.folder, machine.root / "opt/one")
    machine.run("systemctl", "stop", UNIT)
    machine.run("edgepack-agent", "install", "/opt/one", "--soak", "0")
    machine.run("systemctl", "start", UNIT)
    machine.run("useradd", "--user-group", "--groups", "models", "camera")
    x = np.ones((1, WIDTH), np.float32)
    np.save(machine.root / "opt/x.npy", x)
    answer = machine.root / "tmp/y.npz"
    machine.run("edgepack-agent", "infer", "tiny", "/opt/x.npy", "-o", "/tmp/y.npz", user="camera")
    np.testing.assert_allclose(np.load(answer)["y"], expected_output(x, 1), rtol=1e-3)

    # Reload, a power cut, a boot: the agent serves again.
    first = machine.show(UNIT, "MainPID")
    machine.run("systemctl", "reload", UNIT)
    assert machine.show(UNIT, "MainPID") == first
    machine.cut_power()
    machine.boot()
    wait_until(lambda: is_active(machine), "the start at boot")

    # A new version of the package: the agent starts again, with its state.
    first = machine.show(UNIT, "MainPID")
    machine.run("dpkg", "--install", places[1])
    wait_until(lambda: is_active(machine), "the start after an upgrade")
    assert machine.show(UNIT, "MainPID") != first
    assert "active    tiny" in machine.run("edgepack-agent", "status").stdout

    # Removal keeps settings and state; purge keeps what a person made.
    machine.run(*APT, "remove", "edgepack-agent")
    assert not (machine.root / "usr/lib/edgepack").exists()
    assert (machine.root / "var/lib/edgepack/models/tiny/active.json").exists()
    assert (machine.root / "etc/edgepack/device.key").exists()
    own = machine.root / "etc/edgepack/notes.txt"
    own.write_text("mine")
    machine.run("userdel", "camera")
    machine.run(*APT, "purge", "edgepack-agent", "edgepack-agent-cpu")
    for made in (own, own.parent, machine.root / "opt/one", machine.root / "opt/x.npy"):
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    assert machine.files() - before == set()
    assert "edgepack" not in (machine.root / "etc/passwd").read_text()
    assert "models" not in (machine.root / "etc/group").read_text()
