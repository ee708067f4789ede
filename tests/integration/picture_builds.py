"""Bundles of picture models, built and installed with the commands."""

import sys
from pathlib import Path

from tests.simulators import warm_programs


def edgepack(*words: str | Path, module: str = "edgepack.cli") -> str:
    """Run a command and return its output."""
    command = [sys.executable, "-m", module, *map(str, words)]
    done = warm_programs.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def build_bundle(
    model: Path, config: str, pictures: Path, key: Path, output: Path, *options: str
) -> Path:
    """Build a float variant from a folder of pictures.

    Args:
        model: The ONNX file, or a folder.
        config: The edgepack.toml.
        pictures: Samples.
        key: The signing key.
        output: The bundle's folder.
        options: Further options of the command.
    """
    settings = output.parent / f"{output.name}.toml"
    settings.write_text(config)
    edgepack(
        *("build", model, "--config", settings, "--profile", "fp32"),
        *("--calibration", pictures, "--key", key, "-o", output),
        *options,
    )
    return output


def install(bundle: Path, key: Path, state: Path, more: str = "") -> str:
    """Install a bundle on a device without a broker, and return the status.

    Args:
        bundle: The bundle.
        key: Its key, beside the public one.
        state: Folder of the device.
        more: Further sections of its settings.
    """
    state.mkdir(exist_ok=True)
    config = state / "agent.toml"
    config.write_text(
        f'device = "d"\nstate_dir = "{state}"\n[broker]\nurl = "mqtt://127.0.0.1:1"\n'
        f'[trust]\nkeys = ["{key.with_suffix(".pub")}"]\n[probe]\nruns = 1\n{more}'
    )
    module = "edgepack.agent.cli"
    return edgepack("install", bundle, "--config", config, "--soak", "0", module=module)
