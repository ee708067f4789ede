"""Takes the pictures of README and site: the report of the demo's build, and the dashboard.

make screenshots
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from examples.demo.__main__ import BROKEN, BUNDLE, FOLDER, KEY, build
from examples.demo.broken import make_broken_release
from examples.demo.processes import Log

PICTURES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1080, 1350
COLOURS = 64
"""Enough for a page of text; the file is a fifth of the browser's."""
PATIENCE_S = 120.0


def main() -> None:
    """Builds the demo's bundle and writes all pictures."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.exit("chromium is missing: apt-get install chromium")
    shutil.rmtree(FOLDER, ignore_errors=True)
    PICTURES.mkdir(exist_ok=True)
    build(Log(FOLDER / "demo.log"))
    take(browser, Path(f"{BUNDLE}.report.html").resolve().as_uri(), "report", HEIGHT)
    make_broken_release(BUNDLE, BROKEN, KEY, version="1.1.0", release=1_001_000)
    with moving_fleet() as stopped:
        take(browser, login_link("/"), "dashboard", 1120)
        take(browser, login_link(f"/rollouts/{stopped}"), "rollout", 1350)


def take(browser: str, url: str, name: str, height: int) -> None:
    """Writes the picture of a page."""
    path = PICTURES / f"{name}.png"
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        quiet = ("background-networking", "component-update", "gpu", "quic", "sync")
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars"),
                *(f"--disable-{one}" for one in quiet),
                f"--user-data-dir={folder}/browser",
                *(f"--window-size={WIDTH},{height}", f"--screenshot={shot}", url),
            ],
            check=True,
            capture_output=True,
            timeout=PATIENCE_S,
        )
        picture = Image.open(shot).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size // 1000} KB")


@contextlib.contextmanager
def moving_fleet() -> Iterator[str]:
    """A fleet of simulated devices: one rollout was stopped by its gate, one is under way.

    Gives the id of the one that was stopped.
    """
    port = free_port()
    os.environ["EDGEPACK_FLEET_DATA"] = str(FOLDER / "fleet")
    os.environ["EDGEPACK_FLEET_URL"] = f"http://127.0.0.1:{port}"
    trust = ("--trust", str(KEY.with_suffix(".pub")))
    running = [
        start("fleet", "serve", *trust, "--port", str(port), "--broker-port", str(free_port()))
    ]
    try:
        wait_until(lambda: ask("fleet", "info") is not None)
        running += [
            start("simulate", "--devices", "52", "--group", "cameras", "--prefix", "cam"),
            start("simulate", "--devices", "24", "--group", "gates", "--prefix", "gate"),
            start(
                *("simulate", "--devices", "8", "--group", "cameras", "--prefix", "yard"),
                *("--fail-rate", "100%"),
            ),
        ]
        wait_until(lambda: ask("fleet", "info")["online"] == 84)
        first = ("--waves", "100%", "--soak", "0.2", "--max-failures", "100%")
        whole = roll_out(BUNDLE, "--all", *first)
        wait_until(lambda: ask("rollout", "status", whole)["state"] == "FINISHED")
        waves = ("--waves", "40%,100%", "--soak", "0.5", "--max-failures", "5%")
        stopped = roll_out(BROKEN, "--group", "cameras", *waves)
        wait_until(lambda: ask("rollout", "status", stopped)["state"] == "PAUSED")
        slow = ("--waves", "25%,100%", "--soak", "20", "--deadline", "900")
        roll_out(BROKEN, "--group", "gates", *slow)
        time.sleep(2.0)
        yield stopped
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def login_link(then: str) -> str:
    """A link that opens a page of the dashboard."""
    return f"{ask('fleet', 'login')['url']}&then={then}"


def roll_out(bundle: Path, *words: str) -> str:
    """Starts a rollout; gives its id."""
    return str(ask("rollout", "start", str(bundle), *words)["rollout"])


def ask(*words: str) -> Any:
    """What an edgepack command says; None where it fails."""
    command = [sys.executable, "-m", "edgepack.cli", *words, "--json"]
    done = subprocess.run(command, capture_output=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def start(*words: str) -> subprocess.Popen[bytes]:
    """Starts an edgepack command that goes on."""
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-m", "edgepack.cli", *words]
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(is_so: Any) -> None:
    """Waits for something; gives up after a while."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > until:
            sys.exit("the fleet did not come to what was to be pictured")
        time.sleep(0.3)


if __name__ == "__main__":
    main()
