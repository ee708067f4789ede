"""SIGHUP reloads the settings of a real agent, and the service manager is told."""

import signal
import socket
from pathlib import Path

from edgepack.bundle.keys import generate_key, load_private_key
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.bundles import make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device, wait_for_line
from tests.simulators.waiting import PATIENCE_S, wait_until


def test_a_reload_takes_over_new_settings_and_survives_bad_ones(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys
) -> None:
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    (tmp_path / "new.key").write_bytes((new := generate_key()).private_pem)
    (tmp_path / "new.pub").write_bytes(new.public_pem)
    signed = make_bundle(tmp_path / "one", load_private_key(tmp_path / "new.key"))
    controller.hold(signed)
    settings = device.config.read_text()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        device.start({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "4000000"})
        try:
            assert manager.recv(999) == b"STATUS=0 models served"
            assert manager.recv(999) == b"READY=1"
            assert manager.recv(999) == b"WATCHDOG=1"
            controller.offer(DEVICE, signed.desired(1))
            controller.wait_for(lambda model: model.state == "REJECTED")

            # Bad settings: the agent says where, and keeps all.
            device.config.write_text(settings + "[shadow]\nshare = 7\n")
            device.signal(signal.SIGHUP)
            line = wait_for_line(device, "settings not reloaded")
            assert "shadow.share" in line

            # A new key is trusted at once; another broker needs a restart.
            trusted = settings.replace("keys = [", f'keys = ["{tmp_path / "new.pub"}", ')
            device.config.write_text(trusted.replace("keepalive_s = 5", "keepalive_s = 6"))
            device.signal(signal.SIGHUP)
            assert "trust.keys" in wait_for_line(device, "settings reloaded")
            assert "broker.keepalive_s" in wait_for_line(device, "need a restart")
            controller.offer(DEVICE, signed.desired(2))
            controller.wait_for(lambda model: model.state == "COMMITTED")

            for _ in range(50):
                device.signal(signal.SIGHUP)
            said = [manager.recv(999)]
            while said[-1] != b"STATUS=1 model served":
                said.append(manager.recv(999))
            assert sum(b"RELOADING=1" in one for one in said) >= 2
            assert device.stop() == 0
            manager.setblocking(False)
            while not said[-1].startswith(b"STOPPING=1"):
                said.append(manager.recv(999))
        finally:
            if device.is_running:
                device.kill()
    assert "Traceback" not in device.said()


def test_a_hang_up_during_the_start_does_not_end_the_agent(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys
) -> None:
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    device.start()
    try:
        wait_until(lambda: catches_hang_ups(device), "the handler")
        while "connected to" not in device.said():
            device.signal(signal.SIGHUP)
            assert device.is_running
        assert device.stop() == 0
    finally:
        if device.is_running:
            device.kill()


def catches_hang_ups(device: Device) -> bool:
    status = Path(f"/proc/{device.processes()[0]}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGHUP - 1)
