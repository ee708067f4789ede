"""Measures what telemetry costs a device: `python -m benchmarks.telemetry`.

A mosquitto, a controller, an agent with its default settings and an application are real. The
agent's flushes are counted by strace, its writes by the kernel. mosquitto and strace must be
installed.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.fleet.running import Process, RunningFleet, wait_until
from edgepack.bundle.archive import pack
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from tests.simulators.bundles import make_bundle

FLUSHES = ("fsync", "fdatasync", "sync_file_range", "syncfs", "sync", "msync")
GOALS = {"inference_us": 1.0, "flushes": 60.0, "written_bytes": 1e6, "cpu_share": 0.001}


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of telemetry at a rate of inferences.

    Attributes:
        bare_us, inference_us: Processor time of an inference, and of its telemetry, microseconds.
        flushes, written_bytes, application_bytes: In an hour, of the agent, and of the application.
        cpu_share: Processor time of the agent as a share of a core.
        resident_bytes: Memory of the agent.
        measured_s: Duration of the measurement.
    """

    bare_us: float
    inference_us: float
    flushes: float
    written_bytes: float
    application_bytes: float
    cpu_share: float
    resident_bytes: int
    measured_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=10.0, help="Inferences a second.")
    parser.add_argument("--settle", type=float, default=400.0, help="Seconds after the update.")
    parser.add_argument("--seconds", type=float, default=900.0, help="Seconds to measure.")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    costs = measure(asked.rate, settle_s=asked.settle, measured_s=asked.seconds)
    if asked.json:
        print(json.dumps(msgspec.structs.asdict(costs)))
        return
    for name, value in msgspec.structs.asdict(costs).items():
        goal = f"  goal {GOALS[name]:,g}" if name in GOALS else ""
        print(f"{name:20} {value:>16,.3f}{goal}")


def measure(rate: float, *, settle_s: float, measured_s: float) -> Costs:
    """Install a model with a rollout, run an application, and measure."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir="/dev/shm") as run:
        place = Path(name)
        write_key_pair(generate_key(), place / "release")
        bundle = make_bundle(place / "tiny", load_private_key(place / "release.key"))
        pack(bundle.folder, place / "tiny.edgepack")
        with RunningFleet(place, place / "release.pub") as fleet:
            fleet.client.enroll("device", group="g", folder=place / "device")
            with (place / "device" / "agent.toml").open("a") as settings:
                settings.write(f'\n[telemetry]\nruntime_dir = "{run}"\n')  # as /run of a device
            agent = fleet.run_agent(place / "device" / "agent.toml")
            archive = fleet.client.publish(place / "tiny.edgepack")
            chosen = RolloutSettings(waves="100%", soak_s=1.0, gate_evidence="optional")
            started = fleet.client.start_rollout(archive, Selector(kind="all"), chosen)
            wait_until(
                lambda: fleet.client.rollout(started.rollout).state == "FINISHED", "it is installed"
            )
            state_dir = place / "device" / "state"
            bare_us, counted_us = map(float, _application(state_dir, 0).split())
            running = subprocess.Popen(_command(state_dir, rate))
            try:
                time.sleep(settle_s)
                return _watch(fleet, agent, running, (bare_us, counted_us), measured_s)
            finally:
                running.kill()
                agent.kill()  # A traced process may take its time to end.


def _watch(
    fleet: RunningFleet,
    agent: Process,
    application: Process,
    inference_us: tuple[float, float],
    measured_s: float,
) -> Costs:
    before = _written(agent), _written(application), fleet.cost(agent).cpu_s
    command = ["strace", "-f", "-c", "-e", f"trace={','.join(FLUSHES)}", "-p", str(agent.pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    begun = time.monotonic()
    time.sleep(measured_s)
    took_s = time.monotonic() - begun
    cost = fleet.cost(agent)
    after = _written(agent), _written(application), cost.cpu_s
    written, of_application, cpu_s = (b - a for a, b in zip(before, after, strict=True))
    tracer.send_signal(signal.SIGINT)
    counted = re.findall(
        rf"^ *[\d.]+ +[\d.]+ +\d+ +(\d+).* (?:{'|'.join(FLUSHES)})$", tracer.communicate()[1], re.M
    )
    bare_us, counted_us = inference_us
    hours = took_s / 3600
    return Costs(
        bare_us=bare_us,
        inference_us=counted_us - bare_us,
        flushes=sum(map(int, counted)) / hours,
        written_bytes=written / hours,
        application_bytes=of_application / hours,
        cpu_share=cpu_s / took_s,
        resident_bytes=cost.resident_bytes,
        measured_s=took_s,
    )


def _command(state_dir: Path, rate: float) -> list[str]:
    return [sys.executable, "-m", "benchmarks.telemetry.application", str(state_dir), str(rate)]


def _application(state_dir: Path, rate: float) -> str:
    done = subprocess.run(_command(state_dir, rate), check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def _written(process: Process) -> int:
    """Return the bytes that a process caused to be written to disks."""
    lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    return int(counts["write_bytes"])


if __name__ == "__main__":
    main()
