"""The image for containers, judged by other programs: skopeo reads and copies, umoci unpacks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from system_packages.image import GROUP, USER
from tests.simulators.aarch64_namespace import has_own_formats
from tests.simulators.bundles import WIDTH, expected_output, make_bundle
from tests.simulators.programs import require

REPOSITORY = Path(__file__).parents[2]
SETTINGS = """v = 1
device = "cam-1"
state_dir = "/var/lib/edgepack"
[broker]
url = "mqtts://127.0.0.1:1"
[trust]
keys = ["/etc/edgepack/trusted.pub"]
"""


def run(*words: str | Path) -> str:
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("wanted", ["amd64", "arm64"])
def test_the_unpacked_image_serves_a_model(
    tmp_path: Path, built: Path, architecture: str, wanted: str
) -> None:
    require("skopeo", "umoci", is_root=True)
    if wanted != architecture:
        require("qemu-aarch64-static")
        if wanted == "amd64" or not has_own_formats():
            pytest.skip("this machine runs no programs of the other architecture in a namespace")
    skopeo, source = ("skopeo", f"--override-arch={wanted}"), next(built.glob("*_oci.tar"))
    facts = json.loads(run(*skopeo, "inspect", "--config", f"oci-archive:{source}"))
    assert facts["architecture"] == wanted
    assert facts["config"]["User"] == f"{USER}:{GROUP}"
    run(*skopeo, "copy", f"oci-archive:{source}", f"oci:{tmp_path / 'copy'}:agent")
    run("umoci", "unpack", "--image", f"{tmp_path / 'copy'}:agent", tmp_path / "unpacked")
    root = tmp_path / "unpacked/rootfs"

    # As the user of the image, with /proc and no other file of this machine.
    (root / "proc").mkdir(exist_ok=True)

    def inside(*words: str) -> str:
        if wanted != architecture:
            launcher = (sys.executable, "-m", "tests.simulators.aarch64_namespace", root)
            return run(*launcher, str(USER), str(GROUP), *words)
        processes = ("unshare", "--fork", "--pid", f"--mount-proc={root / 'proc'}")
        return run(*processes, "chroot", f"--userspec={USER}:{GROUP}", root, *words)

    program = facts["config"]["Entrypoint"][0]
    secure = "import ssl; assert ssl.create_default_context().cert_store_stats()['x509_ca'] > 50"
    inside("/usr/lib/edgepack/bin/python", "-c", secure)
    private, public = write_key_pair(generate_key(), tmp_path / "release")
    bundle = make_bundle(root / "opt/one", load_private_key(private))
    shutil.copy(public, root / "etc/edgepack/trusted.pub")
    (root / "etc/edgepack/agent.toml").write_text(SETTINGS)
    x = np.ones((1, WIDTH), np.float32)
    np.save(root / "opt/x.npy", x)
    inside(program, "install", f"/opt/{bundle.folder.name}", "--soak", "0")
    inside(program, "infer", "tiny", "/opt/x.npy", "-o", "/var/lib/edgepack/y.npz")
    answer = np.load(root / "var/lib/edgepack/y.npz")["y"]
    np.testing.assert_allclose(answer, expected_output(x, 1), atol=1e-4)
