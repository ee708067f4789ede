"""Other systems' real programs install bundles through the modules of `edgepack-agent other-fleet`.

A running agent serves an application meanwhile. thin-edge.io has no program here: the test calls
its plug-in as thin-edge.io does.
"""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Keys
from tests.integration.test_local_orders import application, archive, serving
from tests.simulators import warm_programs
from tests.simulators.device import Device
from tests.simulators.firmware_boards import KIND, Board, MenderBoard, RaucBoard, SwupdateBoard, run
from tests.simulators.waiting import wait_until

COMMAND = (sys.executable, "-m", "edgepack.agent.cli")


class Bench:
    """A device that serves release 1, with archives of release 2 and of a wrong release 3."""

    def __init__(self, folder: Path, keys: Keys) -> None:
        self.folder = folder
        hook = folder / "hooks/staged.before.d/10-x"
        hook.parent.mkdir(parents=True)
        self.begun, self.held = folder / "begun", folder / "held"
        hook.write_text(
            f"#!/bin/sh\ntouch {self.begun}; while [ -e {self.held} ]; do sleep .05; done\n"
        )
        hook.chmod(0o755)
        url = "mqtt://127.0.0.1:1"
        self.device = Device(folder / "device", url, keys[1], hooks=folder / "hooks")
        self.archives = [archive(folder, keys, n, is_wrong=n == 3) for n in (1, 2, 3)]
        words = ("install", self.archives[0], "--config", self.device.config, "--soak", "0")
        warm_programs.run([*COMMAND, *words], check=True, capture_output=True)

    def write_module(self, system: str, path: Path) -> Path:
        settings = ("--config", self.device.config, "--soak", "0")
        words = [*COMMAND, "other-fleet", system, *settings, "--write", path]
        warm_programs.run(words, check=True, capture_output=True)
        return path


@pytest.fixture(scope="module")
def running_bench(
    tmp_path_factory: pytest.TempPathFactory, release_keys: Keys
) -> Iterator[tuple[Bench, list[str]]]:
    """Yield a bench with a running agent and an application, and the application's errors."""
    bench = Bench(tmp_path_factory.mktemp("bench"), release_keys)
    bench.device.start()
    try:
        with application(bench.device) as errors:
            yield bench, errors
    finally:
        bench.device.kill()


@pytest.fixture
def bench(running_bench: tuple[Bench, list[str]]) -> Iterator[Bench]:
    """Yield the bench, which serves release 1 again whatever a test before has done."""
    bench, errors = running_bench
    if serving(bench.device) != (1, True):
        words = ("rollback", "tiny", "--config", bench.device.config)
        warm_programs.run([*COMMAND, *words], check=True, capture_output=True)
    assert serving(bench.device) == (1, True)
    yield bench
    assert not errors


def mender_artifact(board: MenderBoard, number: int, bundle: Path) -> Path:
    path = board.folder / f"r{number}.mender"
    words = ("mender-artifact", "write", "module-image", "-n", f"r{number}", "-t", KIND)
    run(*words, "-T", "edgepack", "-f", bundle, "-k", "ec.pem", "-o", path, cwd=board.folder)
    return path


def call(*words: str | Path) -> int:
    return subprocess.run(words, capture_output=True, check=False, timeout=400).returncode


def test_mender_installs_commits_and_rolls_back(bench: Bench, tmp_path: Path) -> None:
    board = MenderBoard(tmp_path / "board")
    bench.write_module("mender", board.folder / "modules" / "edgepack")
    mender = board.folder / "mender"
    two, wrong = (mender_artifact(board, n, bench.archives[n - 1]) for n in (2, 3))

    assert call(mender, "install", two) == 0
    assert serving(bench.device) == (2, True)
    assert call(mender, "rollback") == 0
    assert serving(bench.device) == (1, True)

    # The module is killed: Mender rolls back, and the agent takes the release back.
    bench.held.touch()
    bench.begun.unlink()
    with subprocess.Popen([mender, "install", two]) as process:
        wait_until(bench.begun.exists, "the hook")
        os.kill(find_module(bench, "ArtifactInstall"), signal.SIGKILL)
        wait_until(lambda: find_module(bench, "ArtifactRollback") > 0, "Mender's rollback")
        bench.held.unlink()
        assert process.wait(400) != 0
    assert serving(bench.device) == (1, True)

    assert call(mender, "install", two) == 0
    assert call(mender, "commit") == 0
    assert call(mender, "install", wrong) != 0
    assert serving(bench.device) == (2, True)
    assert not [*(bench.device.state_dir / "deployments").glob("*")]


def find_module(bench: Bench, state: str) -> int:
    """Return the process of a module; 0 if there is none."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if state.encode() in words and str(bench.device.config).encode() in words:
            return int(path.parent.name)
    return 0


class ModelRauc(RaucBoard):
    """RAUC with a slot for models, which the hook of a bundle fills."""

    _SETTINGS = RaucBoard._SETTINGS + "[slot.model.0]\ndevice={folder}/model.img\ntype=raw\n"

    def bundle(self, model: Path, hook: Path) -> Path:
        content = self.folder / model.stem
        content.mkdir()
        (self.folder / "model.img").touch()
        (content / "model.img").write_bytes(model.read_bytes())
        (content / "hook").write_bytes(hook.read_bytes())
        (content / "hook").chmod(0o755)
        (content / "manifest.raucm").write_text(
            f"[update]\ncompatible={KIND}\nversion=1\n[bundle]\nformat=plain\n"
            "[hooks]\nfilename=hook\n[image.model]\nfilename=model.img\nhooks=install\n"
        )
        bundle = self.folder / f"{model.stem}.raucb"
        signs = ("--cert=cert.pem", "--key=key.pem")
        run("rauc", *signs, "bundle", content, bundle, cwd=self.folder)
        return bundle


class ModelSwupdate(SwupdateBoard):
    """SWUpdate with the handler for bundles."""

    def bundle(self, model: Path) -> Path:
        folder = self.folder / model.stem
        folder.mkdir()
        (folder / model.name).write_bytes(model.read_bytes())
        sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
        (folder / "sw-description").write_text(
            f'software = {{ version = "1"; hardware-compatibility: [ "1" ]; images: ( {{ '
            f'filename = "{model.name}"; type = "edgepack"; sha256 = "{sha256}"; }} ); }}\n'
        )
        run(
            *("openssl", "cms", "-sign", "-in", "sw-description", "-out", "sw-description.sig"),
            *("-signer", "../cert.pem", "-inkey", "../key.pem", "-outform", "DER"),
            *("-nosmimecap", "-binary"),
            cwd=folder,
        )
        names = f"sw-description\nsw-description.sig\n{model.name}\n".encode()
        words = ["cpio", "--create", "--format=crc", "--quiet"]
        done = subprocess.run(words, cwd=folder, input=names, capture_output=True, check=True)
        (bundle := self.folder / f"{model.stem}.swu").write_bytes(done.stdout)
        return bundle


@pytest.mark.parametrize("kind", [ModelRauc, ModelSwupdate])
def test_rauc_and_swupdate_fail_their_update_if_the_proof_fails(
    bench: Bench, kind: type[Board], tmp_path: Path
) -> None:
    board = kind(tmp_path / "board")
    try:
        if isinstance(board, ModelRauc):
            hook = bench.write_module("rauc", bench.folder / "hook")
            two, wrong = (board.bundle(path, hook) for path in bench.archives[1:])
            words: tuple[str | Path, ...] = (board.folder / "rauc", "install")
        else:
            assert isinstance(board, ModelSwupdate)
            bench.write_module("swupdate", board.folder / "swupdate_handlers.lua")
            two, wrong = (board.bundle(path) for path in bench.archives[1:])
            lua = f"LUA_PATH={board.folder}/?.lua"
            words = ("env", lua, board.folder / "swupdate", *map(str, board.options()), "-i")
        done = subprocess.run([*words, two], capture_output=True, check=False, timeout=400)
        logs = "".join(path.read_text() for path in board.folder.glob("*.log"))
        assert done.returncode == 0, f"{done.stdout!r} {done.stderr!r}\n{logs}"
        assert serving(bench.device) == (2, True)
        assert call(*words, wrong) != 0
        assert serving(bench.device) == (2, True)
    finally:
        board.stop()


def test_thin_edge_lists_installs_and_removes(bench: Bench) -> None:
    plugin = bench.write_module("thin-edge", bench.folder / "edgepack")

    def ask(*words: str | Path) -> tuple[int, str, str]:
        system = ("other-fleet", "thin-edge", "--soak", "0", "--config", bench.device.config, "--")
        done = warm_programs.run(
            [*COMMAND, *system, *words], capture_output=True, text=True, timeout=400
        )
        return done.returncode, done.stdout, done.stderr

    done = subprocess.run([plugin, "list"], capture_output=True, check=True, timeout=400)
    assert done.stdout == b"tiny\t1.1.0\n"
    assert ask("prepare")[0] == ask("finalize")[0] == 0
    assert ask("update-list")[0] == ask("other")[0] == 1
    assert ask("install", "tiny")[0] == 2
    words = ("install", "tiny", "--module-version", "1.2.0", "--file", bench.archives[1])
    code, _, said = ask(*words)
    assert code == 0, said
    assert ask("list")[1] == "tiny\t1.2.0\n"
    code, _, said = ask("install", "tiny", "--file", bench.archives[2])
    assert (code, "ROLLED_BACK" in said) == (2, True)
    # The release before, as an operator's way back.
    code, _, said = ask("install", "tiny", "--file", bench.archives[0])
    assert code == 0, said
    assert ask("remove", "tiny", "--module-version", "9.9.9") == (0, "", "")
    assert ask("list")[1] == "tiny\t1.1.0\n"


def test_a_killed_installation_is_rolled_back_without_an_agent(
    tmp_path: Path, release_keys: Keys
) -> None:
    bench = Bench(tmp_path, release_keys)
    system = ("other-fleet", "mender", "--soak", "0", "--config", bench.device.config, "--")
    (files := tmp_path / "payload" / "files").mkdir(parents=True)

    def ask(state: str) -> int:
        return warm_programs.run(
            [*COMMAND, *system, state, files.parent], capture_output=True, timeout=400
        ).returncode

    assert ask("ArtifactRollback") == 0
    assert ask("ArtifactInstall") == 1  # No file.
    (files / "ocr.edgepack").write_bytes(bench.archives[1].read_bytes())
    bench.held.touch()
    bench.begun.unlink()
    words = [*COMMAND, *map(str, system), "ArtifactInstall", str(files.parent)]
    command = warm_programs.Popen(words, stderr=subprocess.DEVNULL)
    wait_until(bench.begun.exists, "the hook")
    command.send_signal(signal.SIGKILL)
    command.wait(400)
    assert serving(bench.device) == (1, True)
    bench.held.unlink()
    # The system tries again, and decides against the release.
    assert ask("ArtifactInstall") == 0
    assert serving(bench.device) == (2, True)
    assert ask("ArtifactRollback") == ask("ArtifactRollback") == 0
    assert serving(bench.device) == (1, True)
