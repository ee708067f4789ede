"""Errors of the service's installation that need no systemd."""

from pathlib import Path

import pytest

from edgepack.agent.enrolment.package import Package
from edgepack.agent.service import installation, setup
from edgepack.errors import DeviceError


def test_programs_and_folders_that_the_sandbox_hides_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for place in ("/home/ann/.venv/bin/edgepack-agent", "/root/agent"):
        with pytest.raises(DeviceError, match="sandbox") as caught:
            installation._check_program(Path(place))
        assert caught.value.found_in == place
        with pytest.raises(DeviceError, match="sandbox"):
            list(installation.allow_state_dir(Path(place)))
    monkeypatch.setattr("sys.executable", "/home/ann/python")
    with pytest.raises(DeviceError, match="sandbox") as caught:
        installation._check_program(Path("/bin/sh"))
    assert caught.value.found_in == "/home/ann/python"
    monkeypatch.setattr("sys.executable", "/bin/sh")
    monkeypatch.setattr(installation, "__file__", "/opt/installation.py")
    with pytest.raises(DeviceError, match="not found"):
        installation._check_program(Path("/usr/bin/edgepack-agent-missing"))
    installation._check_program(Path("/bin/sh"))


def test_a_state_folder_adds_no_line_to_the_unit() -> None:
    assert installation._escape('/srv/a "b" 5%') == '/srv/a \\"b\\" 5%%'
    with pytest.raises(DeviceError, match="not a usable path"):
        installation._escape("/srv/a\nUser=root")


def test_another_package_enrols_again(tmp_path: Path) -> None:
    package = Package(device="cam-1", tenant="t", broker="mqtt://b", trusted_keys=(), token="one")
    assert not setup.is_enrolled(package, tmp_path)
    (tmp_path / setup.NOTE_FILE).write_bytes(setup._note_of(package))
    assert not setup.is_enrolled(package, tmp_path), "without settings and certificate"
    other = Package(device="cam-1", tenant="t", broker="mqtt://b", trusted_keys=(), token="two")
    assert setup._note_of(other) != setup._note_of(package)
