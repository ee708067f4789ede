"""Boards whose firmware real installers change; only the restart is simulated.

A board has two slots, which are files; a slot's content is the file with the version. fwupd's
board has the fake component of fwupd's own test plug-in instead.
"""

import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgepack.firmware_hooks.__main__ import main as manage_hooks
from tests.simulators.programs import require

KIND = "edgepack-board"
IMAGE_BYTES = 65536
OTHER = {"A": "B", "B": "A"}


def image(version: str) -> bytes:
    """Return the content of a slot, at its full size."""
    return f'NAME=Board\nIMAGE_VERSION="{version}"\n'.encode().ljust(IMAGE_BYTES, b"\n")


# Kills the whole group of the hook before its n-th command.
_KILL = """#!/bin/sh
if [ "$EDGEPACK_STEP" ] && left=$(cat '{folder}/kill_at' 2>/dev/null); then
  echo $((left - 1)) > '{folder}/kill_at'
  [ "$left" = 1 ] && kill -9 0
fi
"""


def write_program(path: Path, script: str) -> None:
    path.write_text(f"{_KILL.format(folder=path.parent)}{script}\n")
    path.chmod(0o755)


def run(*words: str | Path, cwd: Path) -> bytes:
    return subprocess.run(words, cwd=cwd, check=True, capture_output=True).stdout


def make_certificate(folder: Path, *extensions: str) -> None:
    run(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "3650", "-subj", "/CN=b"),
        *(word for extension in extensions for word in ("-addext", extension)),
        cwd=folder,
    )


class Bus:
    """A D-Bus of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [
                "dbus-daemon",
                "--session",
                "--nofork",
                "--address=unix:dir=/tmp",
                "--print-address=1",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


class Service:
    """A service of an installer, which ends and starts with its board."""

    def __init__(self, words: Sequence[str | Path], log: Path, environment: Mapping[str, str]):
        self._words, self._log, self._environment = words, log, environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str | Path, probe: Sequence[str | Path]) -> None:
        """Start, and wait until a command succeeds."""
        environment = os.environ | dict(self._environment)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._words, *more], env=environment, stdout=log, stderr=log
            )
        until = time.monotonic() + 100
        while subprocess.run(probe, env=environment, capture_output=True, check=False).returncode:
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)
            self._process = None


class Board:
    """A board with two slots and a bootloader with files; a slot on trial gets a single start.

    Args:
        folder: Is made.
        version: Version of the firmware that runs first.
    """

    installer = ""
    programs: tuple[str, ...] = ()
    new, old = "2.0", "1.0"
    can_revert_commit = True
    has_trial = True
    is_signed = True

    def __init__(self, folder: Path, version: str = old) -> None:
        require("openssl", *self.programs, is_root=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.hook, self.boot_id = folder / "hook", folder / "boot_id"
        self._requested, self._running = folder / "requested", folder / "os-release"
        self._boots = 0
        for name, content in {"A": image(version), "B": image("")}.items():
            (folder / f"{name}.img").write_bytes(content)
            (folder / f"state.{name}").write_text("good" if name == "A" else "bad")
            (folder / f"tries.{name}").write_text("0")
        (folder / "primary").write_text("A")
        write_program(folder / "reboot", f"touch '{self._requested}'")
        settings = {
            "installer": self.installer,
            "version-file": self._running,
            "reboot": folder / "reboot",
            **self.prepare(),
        }
        words = [
            f"{key}={value}"
            for key, values in settings.items()
            for value in (values if isinstance(values, list) else [values])
        ]
        words += [f"option={option}" for option in self.options()]
        self.arguments = [f"--{word}" for word in words]
        words = [f"--setting={word}" for word in words]
        assert manage_hooks(["install", "firmware", f"--file={self.hook}", *words]) == 0
        self.boot()

    def prepare(self) -> dict[str, object]:
        """Make the board's files, and return further settings of the hook."""
        return {}

    def options(self) -> tuple[object, ...]:
        """Return options of the installer's program."""
        return ()

    def artefact(self, version: str) -> bytes:
        """Return a signed artefact of a firmware."""
        raise NotImplementedError

    @property
    def version(self) -> str:
        """Version of the running firmware."""
        return self._running.read_text().partition('"')[2].partition('"')[0]

    @property
    def is_settled(self) -> bool:
        """True if the running firmware starts next time, and is not on trial."""
        primary = self.read("primary")
        return self.read(f"state.{primary}") == "good" and self.slot == primary

    @property
    def slot(self) -> str:
        """The slot that runs."""
        return self._running.readlink().stem

    @property
    def wants_restart(self) -> bool:
        """True if the hook has requested a restart."""
        return self._requested.exists()

    def boot(self) -> None:
        """Start as the bootloader of the board does."""
        name = self.choose_slot()
        self._requested.unlink(missing_ok=True)
        self._running.unlink(missing_ok=True)
        self._running.symlink_to(self.folder / f"{name}.img")
        self._boots += 1
        self.boot_id.write_text(f"boot-{self._boots}")

    def choose_slot(self) -> str:
        """Return the primary slot if its state is good or a trial is left, else the other slot."""
        name = self.read("primary")
        if self.read(f"state.{name}") != "good":
            tries = int(self.read(f"tries.{name}"))
            (self.folder / f"tries.{name}").write_text(str(max(0, tries - 1)))
            if tries < 1:
                name = OTHER[name]
                (self.folder / "primary").write_text(name)
        return name

    def kill_at(self, number: int) -> None:
        """Let the installer's n-th program kill the hook; 0 lets all programs run."""
        (self.folder / "kill_at").unlink(missing_ok=True)
        if number:
            (self.folder / "kill_at").write_text(str(number))

    def read(self, name: str) -> str:
        return (self.folder / name).read_text().strip()

    def stop(self) -> None:
        """End the board's processes."""


class RaucBoard(Board):
    """A board with RAUC as a service."""

    installer = "rauc"
    programs = ("rauc", "dbus-daemon", "mksquashfs")

    _BACKEND = """cd '{folder}' || exit 1
case "$1" in
  get-primary) cat primary ;;
  set-primary) echo "$2" > primary; echo 1 > "tries.$2" ;;
  get-state) cat "state.$2" ;;
  set-state) echo "$3" > "state.$2"; [ "$3" = good ] || echo 0 > "tries.$2" ;;
esac"""
    _SETTINGS = """[system]
compatible={kind}
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
compatible={kind}
version={version}
[bundle]
format=plain
[image.rootfs]
filename=rootfs.img
"""

    def prepare(self) -> dict[str, object]:
        folder = self.folder
        make_certificate(folder)
        write_program(folder / "backend", self._BACKEND.format(folder=folder))
        (folder / "system.conf").write_text(self._SETTINGS.format(folder=folder, kind=KIND))
        self._bus = Bus()
        environment = {
            "DBUS_STARTER_BUS_TYPE": "session",
            "DBUS_SESSION_BUS_ADDRESS": self._bus.address,
        }
        exports = "\n".join(f"export {key}={shlex.quote(it)}" for key, it in environment.items())
        write_program(folder / "rauc", f"{exports}\nexec rauc --conf '{folder}/system.conf' \"$@\"")
        words = ("rauc", "--conf", folder / "system.conf", "service")
        self._service = Service(words, folder / "service.log", environment)
        return {"program": folder / "rauc"}

    def boot(self) -> None:
        super().boot()
        self._stop_service()
        override = f"--override-boot-slot={self.slot}"
        self._service.start(override, probe=[self.folder / "rauc", "status"])

    def artefact(self, version: str) -> bytes:
        content = self.folder / f"content-{version}"
        content.mkdir()
        (content / "rootfs.img").write_bytes(image(version))
        manifest = self._MANIFEST.format(kind=KIND, version=version)
        (content / "manifest.raucm").write_text(manifest)
        bundle = self.folder / f"{version}.raucb"
        signs = ("--cert=cert.pem", "--key=key.pem")
        run("rauc", *signs, "bundle", content, bundle, cwd=self.folder)
        return bundle.read_bytes()

    def stop(self) -> None:
        self._stop_service()
        self._bus.stop()

    def _stop_service(self) -> None:
        self._service.stop()
        with contextlib.suppress(OSError):
            for mount in (self.folder / "mount").iterdir():
                subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)


class UBootBoard(Board):
    """A board with U-Boot's environment in files, `bootlimit` 1; an artefact is a raw image."""

    installer = "raw"
    is_signed = False
    programs: tuple[str, ...] = ("fw_setenv", "fw_printenv")

    def prepare(self) -> dict[str, object]:
        config = "".join(f"{self.folder}/env{copy} 0x0 0x1000\n" for copy in (1, 2))
        (self.folder / "fw_env.config").write_text(config)
        for copy in (1, 2):
            (self.folder / f"env{copy}").write_bytes(bytes(4096))
        (self.folder / "defaults").write_text("slot=A\nbootcount=0\nupgrade_available=0\n")
        options = f"-c '{self.folder}/fw_env.config'"
        for tool, more in {"fw_setenv": f"-f '{self.folder}/defaults'", "fw_printenv": ""}.items():
            write_program(self.folder / tool, f'exec {tool} {options} {more} "$@"')
        self._set("slot", "A")
        return {
            "fw-setenv": self.folder / "fw_setenv",
            "fw-printenv": self.folder / "fw_printenv",
            "slot-variable": "slot",
            "slot": [f"{name}={self.folder}/{name}.img" for name in OTHER],
        }

    def artefact(self, version: str) -> bytes:
        return image(version)

    @property
    def is_settled(self) -> bool:
        return self._get("upgrade_available") == "0" and self._get("slot") == self.slot

    def choose_slot(self) -> str:
        if self._get("upgrade_available") == "1":
            count = int(self._get("bootcount")) + 1
            self._set("bootcount", str(count))
            if count > 1:  # `altbootcmd`
                self._set("slot", OTHER[self._get("slot")])
                self._set("upgrade_available", "0")
        return self._get("slot")

    def _get(self, name: str) -> str:
        tool = self.folder / "fw_printenv"
        return run(tool, "-n", name, cwd=self.folder).decode().strip()

    def _set(self, name: str, value: str) -> None:
        run(self.folder / "fw_setenv", name, value, cwd=self.folder)


class SwupdateBoard(UBootBoard):
    """The same with SWUpdate."""

    installer = "swupdate"
    is_signed = True
    programs = (*UBootBoard.programs, "swupdate", "cpio")

    def prepare(self) -> dict[str, object]:
        folder = self.folder
        make_certificate(folder, "extendedKeyUsage=emailProtection")
        # Its sockets lie in this folder, whose name must be short.
        self._sockets = tempfile.mkdtemp(dir="/tmp")
        write_program(folder / "swupdate", f'TMPDIR={self._sockets} exec swupdate "$@"')
        return super().prepare() | {"program": folder / "swupdate"}

    def stop(self) -> None:
        shutil.rmtree(self._sockets)

    def options(self) -> tuple[object, ...]:
        return ("-H", f"{KIND}:1", "-k", self.folder / "cert.pem")

    def artefact(self, version: str) -> bytes:
        folder = self.folder / f"content-{version}"
        folder.mkdir()
        (folder / "root.img").write_bytes(image(version))
        sha256 = hashlib.sha256(image(version)).hexdigest()
        copies = "".join(
            f'{name} = {{ images: ( {{ filename = "root.img"; type = "raw"; sha256 = "{sha256}"; '
            f'device = "{self.folder}/{name}.img"; }} ); }};\n'
            for name in OTHER
        )
        (folder / "sw-description").write_text(
            f'software = {{ version = "{version}"; {KIND} = {{\n'
            f'hardware-compatibility: [ "1" ]; stable = {{\n{copies}}}; }}; }}\n'
        )
        run(
            *("openssl", "cms", "-sign", "-in", "sw-description", "-out", "sw-description.sig"),
            *("-signer", "../cert.pem", "-inkey", "../key.pem", "-outform", "DER"),
            *("-nosmimecap", "-binary"),
            cwd=folder,
        )
        names = "sw-description\nsw-description.sig\nroot.img\n"
        words = ["cpio", "--create", "--format=crc", "--quiet"]
        return subprocess.run(
            words, cwd=folder, input=names.encode(), capture_output=True, check=True
        ).stdout


class MenderBoard(Board):
    """A board with the Mender client and an update module that writes the slots."""

    installer = "mender"
    programs = ("mender", "mender-artifact", "unshare")
    can_revert_commit = False

    _MODULE = """cd '{folder}' || exit 1
running=$(basename "$(readlink os-release)" .img)
other=$([ "$running" = A ] && echo B || echo A)
case "$1" in
  NeedsArtifactReboot|SupportsRollback) echo Yes ;;
  ArtifactInstall)
    echo "$running" > back; echo bad > "state.$other"; echo "$running" > primary
    cat "$2"/files/* > "$other.img" && echo 1 > "tries.$other" && echo "$other" > primary ;;
  ArtifactCommit) echo good > "state.$running" ;;
  ArtifactRollback) cat back > primary ;;
esac"""

    def prepare(self) -> dict[str, object]:
        folder = self.folder
        make_certificate(folder)
        run("openssl", "ec", "-in", "key.pem", "-pubout", "-out", "pub.pem", cwd=folder)
        run("openssl", "ec", "-in", "key.pem", "-out", "ec.pem", cwd=folder)
        for name in ("modules", "etc", "data", "data/scripts"):
            (folder / name).mkdir()
        write_program(folder / "modules" / "slots", self._MODULE.format(folder=folder))
        (folder / "data" / "device_type").write_text(f"device_type={KIND}\n")
        (folder / "etc" / "artifact_info").write_text("artifact_name=factory\n")
        (folder / "etc" / "mender.conf").write_text(f'{{"ArtifactVerifyKey": "{folder}/pub.pem"}}')
        script = (
            f"mount --bind '{folder}/modules' /usr/share/mender/modules/v3 && "
            f"mount --bind '{folder}/etc' /etc/mender && "
            f"exec mender --no-syslog --log-level error --data '{folder}/data' \"$@\""
        )
        words = f"exec unshare --mount sh -c {shlex.quote(script)} mender"
        write_program(folder / "mender", f'{words} "$@"')
        return {"program": folder / "mender"}

    def artefact(self, version: str) -> bytes:
        content, artefact = self.folder / "root.img", self.folder / f"{version}.mender"
        content.write_bytes(image(version))
        run(
            *("mender-artifact", "write", "module-image", "-n", f"release-{version}", "-t", KIND),
            *("-T", "slots", "-f", content, "-k", "ec.pem", "-o", artefact),
            cwd=self.folder,
        )
        return artefact.read_bytes()


class FwupdBoard(Board):
    """fwupd as a service, with the webcam of its test plug-in."""

    installer = "fwupd"
    programs = ("fwupdmgr", "fwupdtool", "dbus-daemon")
    has_trial = False
    new, old = "1.2.3", "1.2.2"
    device = "08d460be0f1f9f128413f816022a6439e0078018"

    _METAINFO = """<?xml version="1.0" encoding="UTF-8"?>
<component type="firmware"><id>com.acme.webcam.firmware</id><name>Webcam</name>
<summary>Firmware</summary><developer_name>ACME</developer_name>
<project_license>Proprietary</project_license><metadata_license>CC0-1.0</metadata_license>
<description><p>A firmware</p></description>
<provides><firmware type="flashed">b585990a-003e-5270-89d5-3705a17f9a43</firmware></provides>
<releases><release urgency="high" version="{version}" date="2026-01-01">
<checksum type="sha256" filename="camera.bin" target="content">{sha256}</checksum>
<description><p>A release</p></description></release></releases>
<custom><value key="LVFS::UpdateProtocol">com.acme.test</value>
<value key="LVFS::VersionFormat">triplet</value></custom></component>
"""

    def prepare(self) -> dict[str, object]:
        folder = self.folder
        shutil.copytree("/etc/fwupd", folder / "fwupd")
        settings = "[fwupd]\nTestDevices=true\nOnlyTrusted=false\n"
        (folder / "fwupd" / "fwupd.conf").write_text(settings)
        self._bus = Bus()
        environment = {
            "DBUS_SYSTEM_BUS_ADDRESS": self._bus.address,
            "FWUPD_SYSCONFDIR": str(folder),
            "FWUPD_LOCALSTATEDIR": str(folder / "var"),
        }
        exports = "\n".join(f"export {key}={shlex.quote(it)}" for key, it in environment.items())
        write_program(folder / "fwupdmgr", f'{exports}\nexec fwupdmgr "$@"')
        log = folder / "service.log"
        self._service = Service(["/usr/libexec/fwupd/fwupd"], log, environment)
        self._service.start(probe=["fwupdmgr", "get-devices"])
        previous = folder / "previous.cab"
        previous.write_bytes(self.artefact(self.old))
        return {"program": folder / "fwupdmgr", "device": self.device, "previous": previous}

    def artefact(self, version: str) -> bytes:
        content, cabinet = self.folder / "camera.bin", self.folder / f"{version}.cab"
        content.write_bytes(f"firmware {version}".encode())
        sha256 = hashlib.sha256(content.read_bytes()).hexdigest()
        metainfo = self.folder / "camera.metainfo.xml"
        metainfo.write_text(self._METAINFO.format(version=version, sha256=sha256))
        run("fwupdtool", "build-cabinet", cabinet, content, metainfo, cwd=self.folder)
        return cabinet.read_bytes()

    @property
    def version(self) -> str:
        shown = run(self.folder / "fwupdmgr", "get-devices", "--json", cwd=self.folder).decode()
        return shown.partition("Fake webcam")[2].partition('"Version" : "')[2].partition('"')[0]

    @property
    def is_settled(self) -> bool:
        """Always true: a component has no trial."""
        return True

    def stop(self) -> None:
        self._service.stop()
        self._bus.stop()


BOARDS: dict[str, type[Board]] = {
    board.installer: board
    for board in (RaucBoard, SwupdateBoard, UBootBoard, MenderBoard, FwupdBoard)
}
