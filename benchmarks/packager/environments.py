"""Environments of peers, made at first use and kept in `.venv-peers/`."""

import hashlib
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from benchmarks.packager.contestants import OWN
from benchmarks.tasks.places import ROOT

PEERS = Path(__file__).parents[1] / "peers"
_ENVIRONMENTS = ROOT / ".venv-peers"
_OWN_ROOTS = ("agent", "packager", "profiles")


class EnvironmentFailedError(Exception):
    """A peer could not be installed; the message is the installer's last line."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Environment of a peer.

    Attributes:
        python: Its interpreter.
        version: Installed versions, for readers and for the cache key.
    """

    python: Path
    version: str


def prepare(peer: str) -> Environment:
    """Return the environment of a peer; make a missing environment, which takes minutes.

    Raises:
        EnvironmentFailedError: The environment cannot be installed.
    """
    if peer == OWN:
        _compile_own()
        return Environment(python=Path(sys.executable), version=f"source {_own_digest()}")
    requirements = PEERS / peer / "requirements.txt"
    folder = _ENVIRONMENTS / peer
    python = folder / "bin" / "python"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    ready = folder / ".ready"
    if not ready.exists() or ready.read_text() != digest:
        print(f"installing {peer} (once) …", file=sys.stderr, flush=True)
        if not python.exists():
            _install([sys.executable, "-m", "venv", folder])
        _install([python, "-m", "pip", "install", "--quiet", "-r", requirements])
        ready.write_text(digest)
    return Environment(python=python, version=_pins(requirements))


def _compile_own() -> None:
    """Compile our sources like pip: a peer's installed packages are compiled, and start faster."""
    folders: list[str | Path] = [
        sysconfig.get_path("purelib"),
        *(ROOT / root for root in _OWN_ROOTS),
    ]
    # Some packages ship templates or old syntax as .py: they are passed over, as pip does.
    subprocess.run([sys.executable, "-m", "compileall", "-qq", *folders], check=False)


def _install(command: list[str | Path]) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise EnvironmentFailedError(lines[-1])


def _pins(requirements: Path) -> str:
    """Return the pins of the requirements, e.g. `nncf 3.4.0, onnx 1.23.2`."""
    lines = (line.partition("#")[0].strip() for line in requirements.read_text().splitlines())
    return ", ".join(line.replace("==", " ") for line in lines if line)


def _own_digest() -> str:
    """Return a digest of this project's sources for a build, so that a change is measured again."""
    digest = hashlib.sha256()
    for root in _OWN_ROOTS:
        for file in sorted((ROOT / root).rglob("*")):
            if file.suffix in {".py", ".toml"}:
                digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()[:10]
