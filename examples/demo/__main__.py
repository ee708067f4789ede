"""The whole workflow on a single screen. Run the demo with `make demo`.

1. Build a bundle for three kinds of hardware.
2. Start broker, controller and three unlike devices, each with an application that keeps asking.
3. Roll the bundle out in two waves, and show each device's choice.
4. Offer a deliberately broken release, and show that no device keeps the release.
5. With --keep: leave fleet and devices running, and print a link to the dashboard.

Everything that the commands print goes into a log.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from examples.demo.broken import make_broken_release
from examples.demo.processes import DemoError, Fleet, Log, wait_until
from examples.meter.pictures import MEAN, SIZE, STD
from examples.meter.pictures import main as draw_pictures

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgepack" / "demo"
"""Outside of the clone: keys lie here."""
MODEL = Path(__file__).parents[1] / "meter" / "meter.onnx"
NAME = "meter"
BUNDLE = FOLDER / f"{NAME}-1.0.0.edgepack"
BROKEN = FOLDER / f"{NAME}-1.1.0.edgepack"
KEY = FOLDER / "release.key"
PROFILES = ("cpu", "qnn-htp", "vitisai-xint8")
DEVICES = {
    "gate-cam": "",
    "dock-cam": 'wanted = "QNNExecutionProvider"\nallow_simulator = true',
    "yard-cam": 'wanted = "VitisAIExecutionProvider"',
}
PICTURES = 450
"""Three tenths are held out: 135 prove the accuracy budget, 133 would be enough."""
_CONFIG = f"""[inputs.picture]
kind = "image"
size = [{SIZE}, {SIZE}]
scale = {1 / 255}
mean = {list(MEAN)}
std = {list(STD)}
"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--keep", "is_kept", is_flag=True, help="Leave the fleet running until Ctrl-C.")
def main(is_kept: bool) -> None:
    """Run the demo; end with exit code 0 only after complete success."""
    for number in (signal.SIGINT, signal.SIGTERM):  # both end the fleet's processes, too
        signal.signal(number, lambda *_: sys.exit("stopped"))
    with _only_demo():
        _play(is_kept)


@contextlib.contextmanager
def _only_demo() -> Iterator[None]:
    """Hold the folder: a second demo would remove the files of the first."""
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_name("demo.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(
                f"error: another demo is running in {FOLDER}\n"
                "  try: end that one with Ctrl-C; or set XDG_CACHE_HOME to another folder"
            )
        yield


def _play(is_kept: bool) -> None:
    started_at = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    log = Log(FOLDER / "demo.log")
    click.secho("edgepack demo: one model, three unlike devices, one bad release", bold=True)
    try:
        _show_build(build(log))
        with Fleet(FOLDER, log) as fleet:
            roll_out(fleet)
            offer_broken_release(fleet)
            click.echo(f"\nReport  {BUNDLE}.report.html")
            click.echo(f"Log     {log.path}")
            if is_kept:
                keep(fleet)
            else:
                click.echo("Next    make demo KEEP=1 prints a link to the dashboard")
                click.echo(f"Done in {time.monotonic() - started_at:.0f} s.")
    except DemoError as error:
        sys.exit(f"\nThe demo failed: {error}\nLog: {log.path}")


def build(log: Log) -> dict[str, Any]:
    """Build the bundle and return its report."""
    draw_pictures(FOLDER / "calibration", PICTURES, seed=5)
    (FOLDER / "edgepack.toml").write_text(_CONFIG)
    log.must("keys", "generate", "-o", str(KEY.with_suffix("")))
    log.must(
        *("build", str(MODEL), "--config", str(FOLDER / "edgepack.toml")),
        *(word for profile in PROFILES for word in ("--profile", profile)),
        *("--calibration", str(FOLDER / "calibration"), "--shape", f"picture=1,3,{SIZE},{SIZE}"),
        *("--key", str(KEY), "-o", str(BUNDLE)),
    )
    log.must("verify", str(BUNDLE), "--key", str(KEY.with_suffix(".pub")))
    return dict(json.loads(Path(f"{BUNDLE}.report.json").read_bytes()))


def _show_build(report: dict[str, Any]) -> None:
    click.secho(f"\nBuild   {NAME} 1.0.0: the digits of a water meter", bold=True)
    for variant in report["variants"]:
        timing, accuracy = variant["timing"], variant["accuracy"]
        speed = "no chip here: accuracy checked, speed not"
        if variant["provider"] == "CPUExecutionProvider":
            faster = timing["float_latency_ms"] / timing["latency_ms"]
            speed = f"{faster:.1f} x as fast as the float model on this CPU"
        size_mb = variant["size_bytes"] / 1e6
        click.echo(
            f"  {variant['name']:<14} {variant['precision']:<6} {size_mb:.2f} MB"
            f"  keeps {accuracy['value']:.1%} of {accuracy['sample_count']} decisions, {speed}"
        )


def roll_out(fleet: Fleet) -> None:
    """Start the fleet, roll the bundle out, and show each device's choice."""
    fleet.serve(trust=KEY.with_suffix(".pub"))
    for device, providers in DEVICES.items():
        fleet.add_device(device, providers)
    wait_until(lambda: all(it["online"] for it in fleet.devices()), "all devices have reported")
    rollout = fleet.start_rollout(BUNDLE, waves="1,100%")
    if fleet.watch(rollout) != 0:
        raise DemoError("the rollout did not finish")
    _all_must_run("1.0.0", fleet)
    state = fleet.status(rollout)["state"].lower()
    click.secho(f"\nRollout {rollout}, one device first, then the others: {state}", bold=True)
    for device in fleet.devices():
        for model in device["models"]:
            mark = " (fallback)" if model["is_fallback"] else ""
            click.echo(f"  {device['device']}  {model['variant']} on {model['provider']}{mark}")
            _reason(model["choice_because"])


def offer_broken_release(fleet: Fleet) -> None:
    """Roll out a release with wrong answers, and show that no device keeps the release."""
    make_broken_release(BUNDLE, BROKEN, KEY, version="1.1.0", release=1_001_000)
    fleet.log.must("verify", str(BROKEN), "--key", str(KEY.with_suffix(".pub")))
    rollout = fleet.start_rollout(BROKEN, waves="1,100%")
    if fleet.watch(rollout) == 0:
        raise DemoError("the broken release was rolled out")
    _all_must_run("1.0.0", fleet)
    counts = fleet.stop_applications()
    for device, count in counts.items():
        if count["failed"] or set(count["versions"]) != {"1.0.0"}:
            raise DemoError(f"the application on {device} counted {json.dumps(count)}")
    shown = fleet.status(rollout)
    click.secho(
        f"\nRollout {rollout}, a bad release with a genuine signature: {shown['state'].lower()}",
        bold=True,
    )
    for part in shown["assignments"]:
        if part["state"] == "FAILED":
            click.echo(f"  {part['device']}  refused 1.1.0")
            _reason(part["because"])
    asked = sum(count["asked"] for count in counts.values())
    right = sum(count["right"] for count in counts.values()) / max(1, asked)
    click.echo(
        f"  All devices run 1.0.0. Applications: {asked} inferences, 0 failed, {right:.1%} right."
    )


def _reason(text: str) -> None:
    cut = textwrap.shorten(text, 264, placeholder=" …")
    click.echo(textwrap.indent(textwrap.fill(cut, 88), " " * 12))


def keep(fleet: Fleet) -> None:
    """Print a link to the dashboard and wait for Ctrl-C."""
    click.echo(f"Link    {fleet.login_link()}  (once, within two minutes)")
    where = f"EDGEPACK_FLEET_URL={fleet.url} EDGEPACK_FLEET_DATA={fleet.data}"
    click.echo(f"Again   {where} {Path(sys.executable).with_name('edgepack')} fleet login")
    click.echo("Ctrl-C ends the fleet.")
    signal.pause()


def _all_must_run(version: str, fleet: Fleet) -> None:
    devices = fleet.devices()
    for device in devices:
        active = [model["active"] for model in device["models"] if model["active"]]
        if [bundle["version"] for bundle in active] != [version]:
            raise DemoError(f"{device['device']} runs {active}, not {version}")
    if len(devices) != len(DEVICES):
        raise DemoError(f"{len(devices)} devices are enrolled, not {len(DEVICES)}")


if __name__ == "__main__":
    main()
