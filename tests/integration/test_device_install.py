"""Installation on a device: the base distribution in an empty environment."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOST_ONLY = {
    "onnx",
    "onnxruntime",
    "torch",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "rich",
    "jinja2",
    "iotcore",
}


@pytest.fixture(scope="module")
def device_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("device")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT)],
        check=True,
    )
    return python


def test_the_base_install_pulls_nothing_of_the_host(device_python: Path) -> None:
    listing = subprocess.run(
        [device_python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
        capture_output=True,
        check=True,
    )
    names = {package["name"].lower() for package in json.loads(listing.stdout)}
    assert "edgepack" in names
    assert names & HOST_ONLY == set()


def test_the_agent_and_the_bundle_commands_run_on_the_base_install(device_python: Path) -> None:
    for command in (["edgepack-agent", "--help"], ["edgepack", "verify", "--help"]):
        done = subprocess.run(
            [device_python.with_name(command[0]), *command[1:]], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout


def test_a_host_command_on_a_device_says_what_to_install(device_python: Path) -> None:
    done = subprocess.run(
        [device_python.with_name("edgepack"), "build", "model.onnx"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "pip install 'edgepack[host]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_providers_on_a_device_without_onnx_runtime_says_what_to_install(
    device_python: Path,
) -> None:
    done = subprocess.run(
        [device_python.with_name("edgepack-agent"), "providers"], capture_output=True, text=True
    )
    assert "pip install 'edgepack[cpu]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
