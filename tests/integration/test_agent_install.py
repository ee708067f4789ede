"""`edgepack-agent install`, `status` and `providers` from a user's view."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgepack.bundle.archive import pack
from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.bundles import make_bundle
from tests.simulators.children import has_ended
from tests.simulators.device import Device


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return warm_programs.run(
        [sys.executable, "-m", "edgepack.agent.cli", *words],
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.fixture
def device(tmp_path: Path, release_keys: Keys) -> Device:
    return Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1])


def test_bundles_are_installed_proved_refused_and_gone_back_from(
    tmp_path: Path, device: Device, release_keys: Keys
) -> None:
    one, two, wrong = (
        make_bundle(tmp_path / f"r{n}", release_keys[0], release=n, is_wrong=n == 3)
        for n in (1, 2, 3)
    )
    archive = tmp_path / "two.edgepack"
    pack(two.folder, archive)
    config = ("--config", device.config, "--soak", "0")

    done = run("install", one.folder, *config)
    assert done.returncode == 0, done.stderr
    assert "active    tiny 1.1.0 (release 1)" in done.stdout
    assert "from=SOAKING to=COMMITTED" in done.stderr

    done = run("install", archive, *config, "--json")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    tiny = status["models"]["tiny"]
    assert tiny["active"]["bundle"]["release"] == 2
    assert tiny["active"]["committed"] is True
    assert tiny["previous"]["release"] == 1

    done = run("install", wrong.folder, *config)
    assert done.returncode == 1
    assert "error: 'tiny-1.3.0' was not installed (ROLLED_BACK)" in done.stderr
    assert "tiny-1.2.0 keeps serving" in done.stderr

    done = run("install", one.folder, *config)
    assert done.returncode == 1
    assert "release 1 is offered, release 2 was committed here" in done.stderr
    done = run("install", one.folder, *config, "--rollback")
    assert done.returncode == 0, done.stderr

    done = run("status", "--state-dir", device.state_dir)
    assert done.returncode == 0
    assert "active    tiny 1.1.0" in done.stdout
    assert "agent     not running" in done.stdout
    assert "drift     not measured: no agent is running" in done.stdout


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_an_install_that_is_ended_leaves_nothing_behind_and_can_be_begun_again(
    tmp_path: Path, release_keys: Keys, end: signal.Signals
) -> None:
    hook, begun, go = (tmp_path / name for name in ("hooks/staged.before.d/10-x", "begun", "go"))
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\n[ -e {go} ] && exit 0\necho $$ > {begun}\nexec sleep 600\n")
    hook.chmod(0o755)
    device = Device(
        tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1], hooks=tmp_path / "hooks"
    )
    bundle, archive = make_bundle(tmp_path / "one", release_keys[0]), tmp_path / "one.edgepack"
    pack(bundle.folder, archive)
    words = ("install", archive, "--config", device.config, "--soak", "0")
    install = warm_programs.Popen([sys.executable, "-m", "edgepack.agent.cli", *words])
    while not begun.exists() or not begun.read_text():
        time.sleep(0.01)
    assert len([*device.state_dir.glob(".edgepack-unpacked-*")]) == 1
    install.send_signal(end)
    assert install.wait(400) == (128 + end if end == signal.SIGTERM else -end)
    if end == signal.SIGTERM:
        assert has_ended(int(begun.read_text()))
    else:
        os.kill(int(begun.read_text()), signal.SIGKILL)
    go.touch()
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert not [*device.state_dir.glob(".edgepack-unpacked-*")]


def test_models_are_listed_gone_back_with_and_removed_by_name(
    tmp_path: Path, device: Device, release_keys: Keys
) -> None:
    config = ("--config", device.config)
    for name, release in (("tiny", 1), ("tiny", 2), ("other", 1)):
        bundle = make_bundle(
            tmp_path / f"{name}-{release}", release_keys[0], name=name, release=release
        )
        done = run("install", bundle.folder, *config, "--soak", "0")
        assert done.returncode == 0, done.stderr
    assert "model     other" in done.stdout
    assert "model     tiny" in done.stdout

    done = run("rollback", "tiny", *config)
    assert done.returncode == 0, done.stderr
    assert "active    tiny 1.1.0 (release 1)" in done.stdout
    assert "previous  tiny 1.2.0 (release 2)" in done.stdout

    done = run("rollback", "other", *config)
    assert done.returncode == 1
    assert "error: 'other' has no release to go back to" in done.stderr

    done = run("remove", "tiny", *config, "--json")
    assert done.returncode == 0, done.stderr
    models = json.loads(done.stdout)["models"]
    assert models["tiny"]["state"] == "REMOVED"
    assert models["tiny"]["active"] is None
    assert models["other"]["active"]["bundle"]["release"] == 1
    assert len(list((device.state_dir / "slots").iterdir())) == 1

    done = run("remove", "tiny", *config)
    assert done.returncode == 1
    assert "error: there is no model 'tiny' on this device" in done.stderr
    assert "found in: installed: other" in done.stderr

    done = run("install", tmp_path / "tiny-1", *config)
    assert done.returncode == 1
    assert "release 1 is offered, release 2 was committed here" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_install_that_was_stopped_while_it_soaked_gives_way_to_the_next(
    tmp_path: Path, device: Device, release_keys: Keys, number: int
) -> None:
    one, two = (make_bundle(tmp_path / f"r{n}", release_keys[0], release=n) for n in (1, 2))
    words = ("install", one.folder, "--config", device.config, "--soak", "3600")
    # A shell starts what it puts into the background with SIGINT ignored, and children inherit it.
    program = (sys.executable, "-m", "edgepack.agent.cli")
    command: list[str | Path] = ["env", "--default-signal=INT", *program, *words]
    process = warm_programs.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr as said:
        assert any("to=SOAKING" in line for line in said)
        process.send_signal(number)
        rest = said.read()
    assert process.wait(400) == (1 if number == signal.SIGINT else -number)
    assert ("interrupted in SOAKING" in rest) == (number == signal.SIGINT), rest
    done = run("install", two.folder, "--config", device.config, "--soak", "0")
    assert done.returncode == 0, done.stderr
    assert "active    tiny 1.2.0 (release 2)" in done.stdout


def test_a_tampered_bundle_is_refused_before_anything_is_written(
    tmp_path: Path, device: Device, release_keys: Keys
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    model = bundle.folder / "model" / "cpu" / "model.onnx"
    content = bytearray(model.read_bytes())
    content[1000] ^= 1
    model.write_bytes(content)
    done = run("install", bundle.folder, "--config", device.config)
    assert done.returncode == 1
    assert done.stderr.startswith("error: 'model/cpu/model.onnx' is not what was signed")
    assert not (device.state_dir / "slots").exists()


def test_status_of_a_folder_that_no_agent_used_says_what_to_name(tmp_path: Path) -> None:
    done = run("status", "--state-dir", tmp_path / "none")
    assert done.returncode == 1
    assert "error: there is no such state folder" in done.stderr
    assert "try: name the agent's settings with --config" in done.stderr


def test_providers_lists_what_is_there_and_why_the_rest_is_not() -> None:
    done = run("providers", "--json")
    facts = json.loads(done.stdout)
    available = {provider["name"]: provider for provider in facts["providers"]}
    assert available["CPUExecutionProvider"]["available"] is True
    missing = [one for one in facts["providers"] if not one["available"]]
    assert all(one["because"] for one in missing)
    assert "CPUExecutionProvider" in run("providers").stdout


DEVICE = 'device = "a"\nstate_dir = "s"\n'
TRUST = "[trust]\nkeys = []\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('device = "a b"\nstate_dir = "s"\n' + TRUST, "device id 'a b' must be"),
        (DEVICE + TRUST, "trust no key"),
        (
            DEVICE + "speed = 1\n" + TRUST,
            "unknown key 'speed'; allowed here: broker, capture, decryption, device",
        ),
        (DEVICE + TRUST + '[probe]\nruns = "2"\n', "probe.runs must be a whole number, and is '2'"),
        (DEVICE + "broker = 1\n" + TRUST, "broker must be a section, and is 1"),
        (DEVICE, "try: add a section [trust]"),
        (DEVICE + '[trust]\nkeys = ["no.pub"]\n', "there is no such key"),
        ("\N{BYTE ORDER MARK}" + DEVICE + TRUST, "trust no key"),
        (DEVICE + "\udcff", "the agent's settings are not valid TOML"),
        (DEVICE + "[trust", "try: repair it"),
    ],
)
def test_settings_that_are_wrong_are_named(
    tmp_path: Path, release_keys: Keys, lines: str, said: str
) -> None:
    config = tmp_path / "agent.toml"
    config.write_bytes(lines.encode(errors="surrogateescape"))
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    done = run("install", bundle.folder, "--config", config)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_state_folder_that_cannot_be_written_is_named_without_a_traceback(
    tmp_path: Path, device: Device, release_keys: Keys
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    device.state_dir.mkdir()
    (device.state_dir / "slots").symlink_to("/proc/self/fd")  # No folder can be made there.
    (device.state_dir / "downloads").mkdir()
    (device.state_dir / "models").symlink_to("/proc/self/fd")
    done = run("install", bundle.folder, "--config", device.config)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error: the agent's state cannot be read or written: " in done.stderr
