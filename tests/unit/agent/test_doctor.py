"""Checks of the examination: what is wrong has a verdict, a fact with its number, and a remedy."""

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec.structs import replace

from edgepack.agent.config import (
    AgentConfig,
    BrokerConfig,
    HookConfig,
    IdentityConfig,
    LimitConfig,
    TrustConfig,
)
from edgepack.agent.doctor.examination import CHECKS, examine
from edgepack.agent.doctor.findings import Device, Finding
from edgepack.agent.doctor.folder import check_folder, check_models
from edgepack.agent.doctor.identity import check_broker, check_certificate, check_trust
from edgepack.agent.doctor.machine import check_clock, check_disk, check_disk_health
from edgepack.agent.doctor.programs import check_hooks
from edgepack.agent.doctor.providers import Trial, check_wheels, run_trial
from edgepack.agent.doctor.rights import check_rights
from edgepack.agent.enrolment.identity import key_pem, make_key
from edgepack.agent.state.broker_state import BrokerState
from edgepack.agent.update.status import Status, read_status
from edgepack.fleet.enrolment.authority import Authority
from tests.simulators.certificates import sign_until
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases

CONFIG = AgentConfig(device="cam-1", state_dir="/s", trust=TrustConfig(keys=()))


def device(state_dir: Path, config: AgentConfig | None = CONFIG, **words: object) -> Device:
    return Device(
        config=config,
        state_dir=str(state_dir),
        **({"now": time.time()} | words),  # type: ignore[arg-type]
    )


def worst(findings: Iterator[Finding]) -> Finding:
    order = ("ok", "warning", "wrong")
    return max(findings, key=lambda one: order.index(one.verdict))


def test_a_clock_before_a_time_that_the_device_wrote_is_wrong(world: World) -> None:
    status = read_status(world.state_dir)
    since = max(one.active.since for one in status.models.values() if one.active)
    found = worst(check_clock(device(world.state_dir, status=status, now=since - 86400)))
    assert found.verdict == "wrong"
    assert time.strftime("%Y-%m-%d", time.gmtime(since)) in found.fact
    assert worst(check_clock(device(world.state_dir, status=status, now=since))).verdict != "wrong"


def test_a_disk_below_the_reserve_is_wrong(tmp_path: Path) -> None:
    config = replace(CONFIG, limits=LimitConfig(disk_reserve_bytes=10**18))
    found = worst(check_disk(device(tmp_path / "missing", config)))
    assert (found.verdict, "1000000000000 MB" in found.fact) == ("wrong", True)
    assert worst(check_disk(device(tmp_path))).verdict == "ok"


@pytest.mark.parametrize(
    ("life", "errors", "verdict", "fact"),
    [
        ("0x01 0x01", "0", "ok", "at most 10 %"),
        ("0x02 0x09", "0", "warning", "80 %"),
        ("0x0g 0xZZ many", "x" * 99, "", ""),
        ("0x01 0x01", "7", "wrong", "7 errors"),
    ],
)
def test_the_health_of_a_disk_is_read(
    tmp_path: Path, life: str, errors: str, verdict: str, fact: str
) -> None:
    number = tmp_path.stat().st_dev
    disk, part = tmp_path / "sys/block/mmcblk0", tmp_path / "sys/block/mmcblk0/mmcblk0p2"
    links = tmp_path / "sys/dev/block"
    for folder in (part, disk / "device", links, tmp_path / "sys/fs/ext4/mmcblk0p2"):
        folder.mkdir(parents=True)
    (links / f"{os.major(number)}:{os.minor(number)}").symlink_to(part)
    (disk / "device/life_time").write_text(life)
    (tmp_path / "sys/fs/ext4/mmcblk0p2/errors_count").write_text(errors)
    found = list(check_disk_health(tmp_path, tmp_path))
    if not verdict:
        assert found == []
        return
    assert (worst(iter(found)).verdict, fact in worst(iter(found)).fact) == (verdict, True)


def identity(folder: Path, *, left_s: float = 200 * 86400, life_days: float = 300) -> AgentConfig:
    Authority(folder)
    key = make_key()
    (folder / "device.key").write_bytes(key_pem(key))
    (folder / "device.key").chmod(0o600)
    pem = sign_until(folder, key, "cam-1", left_s=left_s, life_days=life_days)
    (folder / "device.crt").write_text(pem)
    return replace(
        CONFIG,
        identity=IdentityConfig(
            cert_file=str(folder / "device.crt"), key_file=str(folder / "device.key")
        ),
    )


@pytest.mark.parametrize(
    ("left_days", "verdict", "fact"),
    [(200, "ok", "200 days"), (20, "warning", "20 days"), (-1, "wrong", "expired")],
)
def test_the_life_of_a_certificate_is_shown(
    tmp_path: Path, left_days: int, verdict: str, fact: str
) -> None:
    config = identity(tmp_path, left_s=left_days * 86400 + 60)
    found = worst(check_certificate(device(tmp_path, config)))
    assert (found.verdict, fact in found.fact) == (verdict, True)


def test_trust_names_what_is_missing(tmp_path: Path, releases: Releases) -> None:
    key = tmp_path / "release.pub"
    key.write_bytes(
        releases.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    trusting = replace(CONFIG, trust=TrustConfig(keys=(str(key),)))
    assert worst(check_trust(device(tmp_path, trusting))).verdict == "ok"
    assert "trust no key" in worst(check_trust(device(tmp_path))).fact
    rooted = replace(CONFIG, trust=TrustConfig(keys=(str(key),), root=str(tmp_path / "root.json")))
    assert "no root" in worst(check_trust(device(tmp_path, rooted))).fact
    key.write_text("no key")
    assert worst(check_trust(device(tmp_path, trusting))).verdict == "wrong"
    key.unlink()
    assert "there is no key" in worst(check_trust(device(tmp_path, trusting))).fact


def test_a_model_whose_files_changed_is_wrong(world: World) -> None:
    def found() -> Finding:
        status = read_status(world.state_dir)
        return worst(check_models(device(world.state_dir, status=status)))

    assert found().verdict == "ok"
    (model,) = (world.state_dir / "slots").glob("*/model/cpu/model.onnx")
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    assert found().verdict == "wrong"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_may_not_read_a_slot_is_told_to_be_root(world: World) -> None:
    status = read_status(world.state_dir)
    (slot,) = (world.state_dir / "slots").iterdir()
    slot.chmod(0o700)
    os.seteuid(4711)
    try:
        found = worst(check_models(device(world.state_dir, status=status)))
    finally:
        os.seteuid(0)
    assert (found.verdict, found.remedy) == ("warning", "run doctor as root")


def test_a_certificate_of_another_device_or_key_is_wrong(tmp_path: Path) -> None:
    config = identity(tmp_path)
    other = device(tmp_path, replace(config, device="cam-2"))
    assert "cam-1" in worst(check_certificate(other)).fact
    (tmp_path / "device.key").write_bytes(key_pem(make_key()))
    assert worst(check_certificate(device(tmp_path, config))).verdict == "wrong"
    (tmp_path / "device.key").chmod(0o644)
    assert "chmod 600" in worst(check_certificate(device(tmp_path, config))).remedy
    (tmp_path / "device.crt").write_bytes(b"\xff" * 100)
    assert worst(check_certificate(device(tmp_path, config))).verdict == "wrong"


def test_a_broker_is_tried_only_while_no_agent_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = replace(CONFIG, broker=BrokerConfig(url=f"mqtt://127.0.0.1:{port}"))
        assert worst(check_broker(device(tmp_path, config))).verdict == "ok"
    found = worst(check_broker(device(tmp_path, config)))
    assert (found.verdict, str(port) in found.fact) == ("wrong", True)
    state = BrokerState(broker="b:1", is_connected=False, since=0.0, because="no route")
    status = Status(is_running=True, models={}, broker=state)
    assert "no route" in worst(check_broker(device(tmp_path, config, status=status))).fact


def test_hooks_that_others_could_replace_are_wrong(tmp_path: Path) -> None:
    hook = tmp_path / "hooks/staged.after.d/10-x"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    config = replace(CONFIG, hooks=HookConfig(folder=str(tmp_path / "hooks")))
    assert worst(check_hooks(device(tmp_path, config))).verdict == "ok"
    hook.chmod(0o757)
    found = worst(check_hooks(device(tmp_path, config)))
    assert (found.verdict, str(hook) in found.fact) == ("wrong", True)
    hook.chmod(0o644)
    assert worst(check_hooks(device(tmp_path, config))).verdict == "wrong"


def test_two_wheels_that_own_one_module_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnxruntime", "onnxruntime_openvino", "onnxruntime_qnn"):
        info = tmp_path / f"{name}-9.9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
        module = name if name.endswith("qnn") else "onnxruntime"
        (info / "RECORD").write_text(f"{module}/__init__.py,sha256=x,1\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    found = worst(check_wheels(device(tmp_path)))
    assert found.verdict == "wrong"
    assert "onnxruntime_openvino 9.9" in found.fact
    assert "qnn" not in found.fact
    assert "pip uninstall" in found.remedy


def test_a_provider_is_judged_by_what_it_runs() -> None:
    pytest.importorskip("onnxruntime")
    ran = run_trial(Trial(provider="CPUExecutionProvider", device="cpu"))
    assert ran.placement is not None
    assert ran.problem == ""
    missing = run_trial(Trial(provider="NoSuchExecutionProvider", device="npu"))
    assert "NoSuchExecutionProvider" in missing.problem


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time of change and content of everything in a folder."""
    return {
        str(path): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def no_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHECKS, "providers", lambda _: iter(()))


@pytest.mark.usefixtures("no_providers")
def test_an_examination_changes_nothing_and_survives_any_state_folder(
    tmp_path: Path, world: World
) -> None:
    settings = tmp_path / "agent.toml"
    state = json.dumps(str(world.state_dir))
    settings.write_text(f'device = "cam-1"\nstate_dir = {state}\n[trust]\nkeys = []\n')
    before = snapshot(world.state_dir)
    found = {one.subject: one for one in examine(settings, None)}
    assert found["settings"].verdict == found["model tiny"].verdict == "ok"
    assert snapshot(world.state_dir) == before

    pointer = world.state_dir / "models/tiny/active.json"
    pointer.write_bytes(b"\xff")
    (world.state_dir / "broker.json").write_text("[" * 10**5)
    (world.state_dir / "old.damaged").touch()
    found = {one.subject: one for one in examine(settings, None)}
    assert found["model tiny"].verdict == "wrong"
    assert "1 damaged file" in found["folder"].fact
    for path in (world.state_dir / "models/tiny/journal.json", world.state_dir / "agent.lock"):
        path.unlink(missing_ok=True)
        path.mkdir()
    assert {one.subject for one in examine(settings, None)} >= {"folder", "disk", "clock"}
    assert any(one.verdict == "warning" for one in examine(settings, tmp_path / "none"))
    assert worst(examine(tmp_path / "no.toml", world.state_dir)).verdict == "wrong"
    (file := tmp_path / "file").touch()
    assert worst(check_folder(device(file))).verdict == "wrong"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_other_users_are_found(tmp_path: Path) -> None:
    (tmp_path / "models/ocr").mkdir(parents=True)
    (tmp_path / "holders").mkdir()
    for name in ("models/ocr/active.json", "holders/1-x.json"):
        (tmp_path / name).touch()
        os.chown(tmp_path / name, 4711, 4711)
    found = worst(check_folder(device(tmp_path)))
    assert found.verdict == "wrong"
    assert "1 file" in found.fact
    assert "models/ocr/active.json" in found.fact


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_that_the_agents_user_may_not_read_are_found(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 4711, 4711)
    config = identity(tmp_path)
    key = tmp_path / "device.key"

    def of(path: Path) -> list[Finding]:
        return [one for one in check_rights(device(state, config)) if f" {path} " in one.fact]

    (found,) = of(key)
    assert (found.verdict, found.remedy) == ("wrong", f"as root: chown 4711 {key}")
    os.chown(key, 4711, 4711)
    assert not of(key)
    tmp_path.chmod(0o711)
    assert not of(tmp_path)
    tmp_path.chmod(0o700)
    assert "may not enter" in of(tmp_path)[0].fact
