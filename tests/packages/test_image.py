"""The image for containers, judged by other programs: skopeo reads and copies, umoci unpacks."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest


def run(*words: str | Path) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return done.stdout


def test_the_image_runs_unpacked(tmp_path: Path, built: Path, architecture: str) -> None:
    for program in ("skopeo", "umoci"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    archive = next(built.glob("*_oci.tar"))
    source = f"oci-archive:{archive}"
    facts = json.loads(run("skopeo", "inspect", "--config", source))
    assert facts["architecture"] == architecture
    assert facts["config"]["Entrypoint"] == ["/usr/bin/edgepack-agent"]
    run("skopeo", "copy", source, f"oci:{tmp_path / 'copy'}:agent")
    run("umoci", "unpack", "--image", f"{tmp_path / 'copy'}:agent", tmp_path / "unpacked")
    root = tmp_path / "unpacked/rootfs"

    # As the user of the image, with nothing of this machine.
    user = ("chroot", f"--userspec={facts['config']['User']}", root)
    listed = run(*user, *facts["config"]["Entrypoint"], "providers")
    assert "CPUExecutionProvider" in listed
    assert "built into onnxruntime" in listed
    run(*user, "/bin/sh", "-c", "touch /var/lib/edgepack/a /etc/edgepack/a /run/edgepack/a")
    secure = "import ssl; assert ssl.create_default_context().cert_store_stats()['x509_ca'] > 50"
    run(*user, "/usr/lib/edgepack/bin/python", "-c", secure)
