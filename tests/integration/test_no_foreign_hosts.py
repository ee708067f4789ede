"""No process of ours looks up a foreign host, on a host where ONNX Runtime by itself does."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.conftest import Keys
from tests.simulators import isolated_host
from tests.simulators.bundles import make_bundle
from tests.simulators.device import Device

# Whoever only uses ONNX Runtime: it asks for its vendor's host after some seconds.
_BARE_APPLICATION = """
import sys, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
sys.stdin.read()
"""

# A build, a device that probes and installs, and an application with its model, one after another.
_OURS = """
import subprocess, sys
import numpy as np
agent = [sys.executable, "-m", "edgepack.agent.cli"]
material, bundle, config, state = sys.argv[1:]
build = [sys.executable, "-m", "edgepack.cli", "build", f"{material}/small.onnx"]
build += ["--profile", "cpu", "--calibration", f"{material}/samples.npz"]
build += ["--key", f"{material}/release.key", "-o", f"{state}-built-1.0.0"]
subprocess.run([*agent, "install", bundle, "--config", config, "--soak", "0"], check=True)
subprocess.run(build, check=True)
from edgepack.agent import open_model
with open_model("tiny", state_dir=state) as model:
    shape = [size if isinstance(size, int) else 1 for size in model.inputs[0].shape]
    model.run({model.inputs[0].name: np.zeros(shape, np.float32)})
    print("runs", flush=True)
    sys.stdin.read()
"""


@contextmanager
def lonely(home: Path, *command: str | Path, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a command on an isolated host, until its stdin is closed."""
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    for quiet in ("ORT_DISABLE_TELEMETRY", "CI"):  # with either of them ONNX Runtime asks nobody
        environment.pop(quiet, None)
    roots = [entry for entry in sys.path if entry]
    with subprocess.Popen(
        ["unshare", "--net", "--mount", sys.executable, isolated_host.__file__, *command],
        env={**environment, "PYTHONPATH": os.pathsep.join(roots), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace is made by root")
def test_no_process_of_ours_looks_up_a_foreign_host(
    material: Path, tmp_path: Path, release_keys: Keys
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1])
    homes = tmp_path / "our-home", tmp_path / "bare-home"
    ours = [material, bundle.folder, device.config, device.state_dir]
    bare = [material / "small.onnx"]
    with (
        lonely(homes[0], sys.executable, "-c", _OURS, *ours) as our_host,
        lonely(homes[1], sys.executable, "-c", _BARE_APPLICATION, *bare) as bare_host,
    ):
        assert our_host.stdout is not None
        assert bare_host.stdout is not None
        told: list[str] = []
        while not told or told[-1] not in ("", "runs\n"):
            told.append(our_host.stdout.readline())
        # Ours has run for as long as the bare application when that asks for the second time.
        asked = [bare_host.stdout.readline() for _ in range(4)]
        assert all(line.startswith("asked for ") for line in asked), "the comparison asks"
        told.append(our_host.communicate()[0])
    assert "runs\n" in told
    assert not [line for line in told if "asked for" in line]
    assert (homes[1] / ".cache/Microsoft").exists()
    assert not (homes[0] / ".cache/Microsoft").exists()
