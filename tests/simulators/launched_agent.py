"""A real agent under the launcher of the package, started again for ever as by systemd."""

import io
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from edgepack.agent.self_update.environment_archive import pack_environment
from edgepack.bundle.agent_release import AGENT_RELEASE, environment_kind
from edgepack.bundle.keys import PrivateKey
from edgepack.bundle.manifest import Firmware
from tests.simulators.bundles import ExampleBundle, make_bundle

REPOSITORY = Path(__file__).parents[2]
LAUNCHER = REPOSITORY / "system_packages/launcher.sh"
PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
CRASHES = """import os, sys
if "run" in sys.orig_argv:
    os._exit(3)
"""
"""An agent that proves itself as a child, and does not start as the agent."""
UNPROVEN = """import os, sys
if "edgepack.agent.cli.proof" in sys.orig_argv:
    print("this agent cannot prove itself", file=sys.stderr, flush=True)
    os._exit(1)
"""


def make_environment(mark: str, site_code: str = "") -> bytes:
    """Return an archive of an environment that runs this repository.

    Args:
        mark: Makes the environment differ from others.
        site_code: Code that runs at each start of its interpreter.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, text in site_files(mark, site_code).items():
            files[f"{PACKAGES}/{name}"] = path = Path(folder, name)
            path.write_text(text)
        output = io.BytesIO()
        pack_environment(files, output)
    return output.getvalue()


def site_files(mark: str, site_code: str = "") -> dict[str, str]:
    """Return the files of a folder of packages that runs this repository, by name."""
    folders = ("agent", "fleet", "packager", "profiles", "firmware_hooks")
    lines = [str(REPOSITORY / one) for one in folders] + [sysconfig.get_path("purelib")]
    return {"repo.pth": "\n".join(lines) + "\n", "mark.txt": mark, "sitecustomize.py": site_code}


def make_agent_release(
    folder: Path, key: PrivateKey, release: int, site_code: str = "", **options: Any
) -> ExampleBundle:
    """Make a release of the agent with version `RELEASE.0` for this machine."""
    firmware = Firmware(
        installer=AGENT_RELEASE,
        compatible=environment_kind(),
        version=f"{release}.0",
        file=f"firmware/agent-{release}.tar",
    )
    content = make_environment(str(release), site_code)
    return make_bundle(
        folder, key, name=AGENT_RELEASE, release=release, firmware={firmware: content}, **options
    )


class LaunchedAgent:
    """An agent that is started by the launcher, and again whenever it ends.

    Args:
        folder: Receives launcher and slots.
        config: Settings of the agent.
        log: Receives the log.

    Attributes:
        slots: Folder of the agent's slots.
    """

    def __init__(self, folder: Path, config: Path, log: Path) -> None:
        self.slots, self._launcher = folder / "slots", folder / "launcher"
        write_launcher(self._launcher, self.slots)
        self._config, self._log, self._is_over = config, log, False
        self._start_once()
        self._thread = threading.Thread(target=self._supervise)
        self._thread.start()

    def _start_once(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._launcher, "run", "--config", self._config],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )

    def _supervise(self) -> None:
        while True:
            self._process.wait()
            time.sleep(0.1)
            if self._is_over:
                return
            self._start_once()

    def kill(self) -> None:
        """Kill the agent, or the launcher before it, by SIGKILL; both start again."""
        self._process.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the agent for good."""
        self._is_over = True
        self._process.terminate()
        self._thread.join()


def write_launcher(path: Path, slots: Path) -> None:
    """Write the launcher of the package, for a folder of slots and this environment."""
    packaged = path.with_name("packaged-agent")
    packaged.write_text(f'#!/bin/sh\nexec {sys.executable} -m edgepack.agent.cli "$@"\n')
    packaged.chmod(0o755)
    text = LAUNCHER.read_text()
    for before, after in (
        ("/usr/lib/edgepack/bin/edgepack-agent", packaged),
        ("/var/lib/edgepack/agent", slots),
    ):
        assert before in text
        text = text.replace(before, str(after))
    path.write_text(text)
    path.chmod(0o755)
