"""Plain ways to move the same bytes on this machine: a paho loop, and nginx over HTTP."""

import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.fleet.running import MOSQUITTO, free_port, listens, wait_until
from edgepack.fleet.broker.settings.write import queue_settings

MESSAGE_BYTES = 64 * 1024
WINDOW = 32
"""Messages that the plain publisher has given to paho and that are not with the socket yet."""
NGINX = "/usr/sbin/nginx"
_TOPIC = "plain/chunks"
_READ_BYTES = 1024 * 1024


def paho_loop(size_bytes: int, folder: Path) -> float:
    """Return bytes a second, first message to last, of a paho publisher and a paho subscriber.

    Args:
        size_bytes: All messages together.
        folder: For mosquitto's settings.
    """
    port = free_port()
    config = folder / "plain.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n{queue_settings()}")
    with ExitStack() as stack:
        broker = subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL)
        stack.callback(broker.wait, 30)
        stack.callback(broker.terminate)
        wait_until(lambda: listens(port), "mosquitto listens")
        count = -(-size_bytes // MESSAGE_BYTES)
        program = (sys.executable, "-m", "benchmarks.transfer.peers")
        subscriber = subprocess.Popen(
            [*program, "subscribe", str(port), str(count)], stdout=subprocess.PIPE, text=True
        )
        stack.callback(subscriber.wait, 60)
        assert subscriber.stdout is not None
        subscriber.stdout.readline()  # It listens.
        subprocess.run([*program, "publish", str(port), str(count)], check=True)
        seconds = float(subscriber.stdout.readline())
    return count * MESSAGE_BYTES / seconds


def nginx(size_bytes: int, folder: Path) -> float:
    """Return bytes a second of a single GET of a file from nginx."""
    port = free_port()
    (folder / "www").mkdir()
    (folder / "www" / "file").write_bytes(bytes(size_bytes))
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/nginx.log;\n"
        f"user root;\nevents {{}}\nhttp {{\n  access_log off;\n  sendfile on;\n"
        f"  client_body_temp_path {folder}/body;\n"
        f"  server {{\n    listen 127.0.0.1:{port};\n    root {folder}/www;\n  }}\n}}\n"
    )
    with ExitStack() as stack:
        server = subprocess.Popen([NGINX, "-c", str(config)], stderr=subprocess.DEVNULL)
        stack.callback(server.wait, 30)
        stack.callback(server.terminate)
        wait_until(lambda: listens(port), "nginx listens")
        began = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/file", timeout=60) as answer:
            while answer.read(_READ_BYTES):
                pass
        return size_bytes / (time.monotonic() - began)


def _subscribe(port: int, count: int) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    taken: list[float] = []

    def take(_client: mqtt.Client, _userdata: Any, _message: mqtt.MQTTMessage) -> None:
        taken.append(time.monotonic())
        if len(taken) == count:
            client.disconnect()

    client.on_message = take
    client.on_subscribe = lambda *_: print("listens", flush=True)
    client.connect("127.0.0.1", port)
    client.subscribe(_TOPIC, qos=0)
    client.loop_forever()
    print(taken[-1] - taken[0], flush=True)


def _publish(port: int, count: int) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()
    payload = bytes(MESSAGE_BYTES)
    waiting: list[mqtt.MQTTMessageInfo] = []
    for _ in range(count):
        waiting.append(client.publish(_TOPIC, payload, qos=0))
        if len(waiting) >= WINDOW:
            waiting.pop(0).wait_for_publish(60)
    for info in waiting:
        info.wait_for_publish(60)
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    _, act, at, messages = sys.argv
    (_subscribe if act == "subscribe" else _publish)(int(at), int(messages))
