"""The whole path on real input, told as it happens. Run it with `make demo`.

1. Build one bundle for three kinds of hardware.
2. Start broker, controller and three unlike devices, each with an application that keeps asking.
3. Roll the bundle out in two waves.
4. Show what each device chose, why, and how fast real inferences were.
5. Offer a release that is broken on purpose, and show that no device keeps it.
6. With --keep: leave fleet and devices running, and say where to look at them.
"""

import contextlib
import json
import shutil
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from examples.demo.broken import make_broken_release
from examples.demo.lines import text_lines
from examples.demo.processes import DemoError, Fleet, command, edgepack, wait_until
from examples.demo.telling import heading, say, show_applications, show_choices, show_command

FOLDER = Path(".demo")
NAME = "line-orientation"
BUNDLE = FOLDER / f"{NAME}-1.0.0.edgepack"
BROKEN = FOLDER / f"{NAME}-1.1.0.edgepack"
KEY = FOLDER / "release.key"
PROFILES = ("cpu", "qnn-htp", "vitisai-xint8")
DEVICES = {
    "gate-cam": "",
    "dock-cam": 'wanted = "QNNExecutionProvider"\nallow_simulator = true',
    "yard-cam": 'wanted = "VitisAIExecutionProvider"',
}
CALIBRATION_LINES = 96


def main() -> None:
    """Plays the story; ends with exit code 0 only when all of it came true."""
    started_at = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    try:
        tell_build()
        with Fleet(FOLDER) as fleet:
            tell_devices(fleet)
            tell_rollout(fleet)
            tell_broken_release(fleet)
            _end(time.monotonic() - started_at)
            if "--keep" in sys.argv:
                keep(fleet)
    except DemoError as error:
        sys.exit(f"\nThe demo did not come true: {error}\nLogs: {FOLDER}/logs")


def tell_build() -> None:
    """Step 1."""
    heading("1. One model, one bundle, three kinds of hardware")
    say(
        "The model is PP-OCR's text-line orientation, as the package rapidocr-onnxruntime ships "
        f"it. Its calibration data: {CALIBRATION_LINES} text lines, drawn here, half of them "
        "upside down."
    )
    samples = FOLDER / "samples"
    samples.mkdir()
    for number, (line, _) in enumerate(text_lines(CALIBRATION_LINES, seed=1)):
        np.savez(samples / f"line-{number:03}.npz", x=line)
    edgepack("keys", "generate", "-o", str(KEY.with_suffix("")))
    edgepack(
        "build",
        str(_model_file()),
        *(word for profile in PROFILES for word in ("--profile", profile)),
        *("--shape", "x=1,3,48,192", "--calibration", str(samples), "--key", str(KEY)),
        *("-o", str(BUNDLE)),
    )
    edgepack("verify", str(BUNDLE), "--key", str(KEY.with_suffix(".pub")))


def tell_devices(fleet: Fleet) -> None:
    """Step 2."""
    heading("2. A fleet: broker, controller, three devices")
    fleet.serve(trust=KEY.with_suffix(".pub"))
    for device, providers in DEVICES.items():
        fleet.add_device(device, providers)
    say(
        "gate-cam is a plain CPU. dock-cam was bought for its Qualcomm NPU (the HTP simulator "
        "stands in for the chip). yard-cam was bought for its AMD NPU, whose driver is missing."
    )


def tell_rollout(fleet: Fleet) -> None:
    """Steps 3 and 4."""
    heading("3. Roll it out: one device first, then the rest")
    wait_until(lambda: all(it["online"] for it in fleet.devices()), "all devices have reported")
    rollout = fleet.start_rollout(BUNDLE, waves="1,100%")
    if command("rollout", "watch", rollout, data=fleet.data) != 0:
        raise DemoError("the rollout did not finish")
    heading("4. What each device chose, and how fast real inferences were")
    wait_until(lambda: len(fleet.latencies(rollout)) >= 2, "latencies are reported")
    edgepack("rollout", "status", rollout, data=fleet.data)
    say("")
    show_choices(fleet.devices())
    _all_must_run("1.0.0", fleet)


def tell_broken_release(fleet: Fleet) -> None:
    """Step 5."""
    heading("5. A release that is broken: genuine signature, wrong answers")
    say(
        "After the build, a packaging script swapped the model's outputs and signed the result "
        "with the real key. It loads, it is fast, and every answer is wrong."
    )
    make_broken_release(BUNDLE, BROKEN, KEY, version="1.1.0", release=1_001_000)
    edgepack("verify", str(BROKEN), "--key", str(KEY.with_suffix(".pub")))
    rollout = fleet.start_rollout(BROKEN, waves="1,100%")
    if command("rollout", "watch", rollout, data=fleet.data) == 0:
        raise DemoError("the broken release was rolled out")
    say("")
    edgepack("rollout", "status", rollout, data=fleet.data)
    _all_must_run("1.0.0", fleet)
    counts = fleet.stop_applications()
    show_applications(counts)
    for device, count in counts.items():
        if count["failed"] or set(count["versions"]) != {"1.0.0"}:
            raise DemoError(f"the application on {device} saw {json.dumps(count)}")
    say("No device kept 1.1.0; no application saw a wrong or failed inference from it.")


def keep(fleet: Fleet) -> None:
    """Step 6."""
    heading("6. The dashboard: what stopped, and why")
    show_command(("fleet", "login"))
    print(fleet.login_link(), flush=True)
    say("")
    say("The link opens the dashboard once, within two minutes. Another link:")
    where = f"EDGEPACK_FLEET_URL={fleet.url} EDGEPACK_FLEET_DATA={fleet.data}"
    print(f"  {where} {Path(sys.executable).with_name('edgepack')} fleet login")
    say("Ctrl-C ends the fleet.")
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def _end(took_s: float) -> None:
    say(f"All of it came true, in {took_s:.0f} s. Look at {BUNDLE}.report.html")
    if "--keep" not in sys.argv:
        say("'make demo KEEP=1' leaves the dashboard running, with this breach on it.")


def _all_must_run(version: str, fleet: Fleet) -> None:
    devices = fleet.devices()
    for device in devices:
        active = [model["active"] for model in device["models"] if model["active"]]
        if [bundle["version"] for bundle in active] != [version]:
            raise DemoError(f"{device['device']} runs {active}, not {version}")
    if len(devices) != len(DEVICES):
        raise DemoError(f"{len(devices)} devices are enrolled, not {len(DEVICES)}")


def _model_file() -> Path:
    spec = find_spec("rapidocr_onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        raise DemoError("the package rapidocr-onnxruntime is missing: run 'make demo'")
    folder = Path(spec.submodule_search_locations[0])
    return folder / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"


if __name__ == "__main__":
    main()
