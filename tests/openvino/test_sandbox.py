"""OpenVINO under the sandbox of the service, in a real systemd."""

import json
from pathlib import Path

import pytest

from tests.simulators.systemd_machine import SystemdMachine, booted, why_not

pytestmark = pytest.mark.openvino


def test_openvino_runs_in_the_sandbox_of_the_service(tmp_path: Path) -> None:
    if because := why_not():
        pytest.skip(because)
    with booted(SystemdMachine(tmp_path / "machine")) as machine:
        machine.run("edgepack-agent", "service", "install")
        said = json.loads(machine.run_sandboxed("doctor --json"))
    facts = [one["fact"] for one in said if one["subject"] == "providers"]
    assert any(
        one.startswith("OpenVINOExecutionProvider (cpu) ran a small model") for one in facts
    ), facts
