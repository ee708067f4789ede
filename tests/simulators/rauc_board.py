"""A board with two slots in files, updated by a real RAUC; only the restart is simulated."""

import contextlib
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

from edgepack.firmware_hooks.__main__ import main as manage_hooks
from tests.simulators.programs import require

COMPATIBLE = "edgepack-board"

# A bootloader as RAUC sees it. A slot on trial gets a single start.
_BACKEND = """#!/bin/sh
cd '{folder}' || exit 1
case "$1" in
  get-primary) cat primary ;;
  set-primary) echo "$2" > primary; echo 1 > "tries.$2" ;;
  get-state) cat "state.$2" ;;
  set-state) echo "$3" > "state.$2"; [ "$3" = good ] || echo 0 > "tries.$2" ;;
esac
"""
_SETTINGS = """[system]
compatible={compatible}
bootloader=custom
statusfile={folder}/status
mountprefix={folder}/mount
[handlers]
bootloader-custom-backend={folder}/backend
[keyring]
path={folder}/cert.pem
[slot.rootfs.0]
device={folder}/A.img
type=raw
bootname=A
[slot.rootfs.1]
device={folder}/B.img
type=raw
bootname=B
"""
_MANIFEST = """[update]
compatible={compatible}
version={version}
[bundle]
format=plain
[image.rootfs]
filename=rootfs.img
"""
_IMAGE_BYTES = 65536


class FirmwareBoard(Protocol):
    """A board whose firmware the reference hook changes."""

    hook: Path
    boot_id: Path
    installer: str

    @property
    def version(self) -> str:
        """Version of the running firmware."""

    @property
    def is_settled(self) -> bool:
        """True if the running firmware starts next time, and is not on trial."""

    @property
    def wants_restart(self) -> bool:
        """True if the hook has requested a restart."""

    def boot(self) -> None:
        """Start as the bootloader of the board does."""

    def artefact(self, version: str) -> bytes:
        """Return an artefact of a firmware."""


def image(version: str) -> bytes:
    """Return the content of a slot: the file with the version, at its full size."""
    return f'NAME=Board\nIMAGE_VERSION="{version}"\n'.encode().ljust(_IMAGE_BYTES, b"\n")


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


class RaucBoard:
    """A board with RAUC as a service on a D-Bus of its own.

    Args:
        folder: Is made; must be short enough for a mount point.
        version: Version of the firmware that runs first.
    """

    installer = "rauc"

    def __init__(self, folder: Path, version: str = "1.0") -> None:
        require("rauc", "dbus-daemon", "openssl", "mksquashfs", is_root=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.hook, self.boot_id = folder / "hook", folder / "boot_id"
        self._requested = folder / "requested"
        self._running = folder / "os-release"
        self._service: subprocess.Popen[bytes] | None = None
        self._boots = 0
        self._run(
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:P-256", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"),
            *("-days", "3650", "-subj", "/CN=board"),
        )
        for name, content in {"A": image(version), "B": image("")}.items():
            (folder / f"{name}.img").write_bytes(content)
            (folder / f"state.{name}").write_text("good" if name == "A" else "bad")
            (folder / f"tries.{name}").write_text("0")
        (folder / "primary").write_text("A")
        (folder / "backend").write_text(_BACKEND.format(folder=folder))
        (folder / "backend").chmod(0o755)
        settings = _SETTINGS.format(folder=folder, compatible=COMPATIBLE)
        (folder / "system.conf").write_text(settings)
        self._bus = subprocess.Popen(
            [
                "dbus-daemon",
                "--session",
                "--nofork",
                "--address=unix:dir=/tmp",
                "--print-address=1",
            ],
            stdout=subprocess.PIPE,
        )
        assert self._bus.stdout is not None
        address = self._bus.stdout.readline().decode().strip()
        self._environment = {
            "DBUS_STARTER_BUS_TYPE": "session",
            "DBUS_SESSION_BUS_ADDRESS": address,
        }
        exports = "\n".join(f"export {k}={shlex.quote(v)}" for k, v in self._environment.items())
        write_program(folder / "rauc", f"{exports}\nexec rauc --conf '{folder}/system.conf' \"$@\"")
        write_program(folder / "reboot", f"touch '{self._requested}'")
        settings_of_hook = {
            "installer": "rauc",
            "program": folder / "rauc",
            "version-file": self._running,
            "reboot": folder / "reboot",
        }
        words = [f"--setting={key}={value}" for key, value in settings_of_hook.items()]
        assert manage_hooks(["install", "firmware", f"--file={self.hook}", *words]) == 0
        self.boot()

    @property
    def version(self) -> str:
        return self._running.read_text().partition('"')[2].partition('"')[0]

    @property
    def is_settled(self) -> bool:
        primary = self._read("primary")
        return self._read(f"state.{primary}") == "good" and self._running.readlink().stem == primary

    @property
    def wants_restart(self) -> bool:
        return self._requested.exists()

    def boot(self) -> None:
        """Start the primary slot if its state is good or a trial is left, else the other slot."""
        name = self._read("primary")
        other = {"A": "B", "B": "A"}[name]
        if self._read(f"state.{name}") != "good":
            tries = int(self._read(f"tries.{name}"))
            (self.folder / f"tries.{name}").write_text(str(max(0, tries - 1)))
            if tries < 1:
                name = other
                (self.folder / "primary").write_text(name)
        self._requested.unlink(missing_ok=True)
        self._running.unlink(missing_ok=True)
        self._running.symlink_to(self.folder / f"{name}.img")
        self._boots += 1
        self.boot_id.write_text(f"boot-{self._boots}")
        self._stop_service()
        with (self.folder / "service.log").open("ab") as log:
            self._service = subprocess.Popen(
                [
                    *("rauc", "--conf", self.folder / "system.conf"),
                    *(f"--override-boot-slot={name}", "service"),
                ],
                env=os.environ | self._environment,
                stderr=log,
            )
        self._wait_for_service()

    def artefact(self, version: str) -> bytes:
        """Return a signed bundle of RAUC."""
        content = self.folder / f"content-{version}"
        content.mkdir()
        (content / "rootfs.img").write_bytes(image(version))
        manifest = _MANIFEST.format(compatible=COMPATIBLE, version=version)
        (content / "manifest.raucm").write_text(manifest)
        bundle = self.folder / f"{version}.raucb"
        self._run("rauc", "--cert=cert.pem", "--key=key.pem", "bundle", content, bundle)
        return bundle.read_bytes()

    def stop(self) -> None:
        self._stop_service()
        self._bus.kill()
        self._bus.wait(10)
        if self._bus.stdout is not None:
            self._bus.stdout.close()

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text().strip()

    def _run(self, *words: str | Path) -> None:
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True)

    def _stop_service(self) -> None:
        if self._service is not None:
            self._service.kill()
            self._service.wait(10)
            with contextlib.suppress(OSError):
                for mount in (self.folder / "mount").iterdir():
                    subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)

    def _wait_for_service(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            done = subprocess.run(
                [self.folder / "rauc", "status"], capture_output=True, check=False
            )
            if done.returncode == 0:
                return
            time.sleep(0.02)
        print((self.folder / "service.log").read_text(), file=sys.stderr)
        raise AssertionError("RAUC's service did not start")
