"""Cost of the watch on a device: a real agent, a real broker, and an application at 10 inferences a
second.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from edgepack.agent import open_model
from edgepack.agent.config import TelemetryConfig
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from tests.simulators.broker import Broker
from tests.simulators.bundles import WIDTH, make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device

_COUNTED = """
import os, sys
flushes = [0]
shown = os.open(sys.argv[-1], os.O_WRONLY)
for name in ("fsync", "fdatasync"):
    def counted(fd, real=getattr(os, name)):
        flushes[0] += 1
        os.pwrite(shown, b"%20d" % flushes[0], 0)
        return real(fd)
    setattr(os, name, counted)
"""
_AGENT = f"""{_COUNTED}
from edgepack.agent.cli.commands import cli
cli(["run", "--config", sys.argv[1]], prog_name="edgepack-agent")
"""
_APPLICATION = f"""{_COUNTED}
import time
import numpy as np
from edgepack.agent import open_model
with open_model("tiny", sys.argv[1], threads=1) as model:
    x = np.zeros((1, {WIDTH}), np.float32)
    while True:
        model.run({{"x": x}})
        time.sleep(0.1)
"""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Measured cost.

    Attributes:
        seconds: Length of the measurement.
        agent_share: Processor time of the agent, as a share of a core.
        resident_mb, proportional_mb, private_mb: Memory of the agent: with all mapped files, with
            its share of mapped files, without files.
        written_mb_h: Bytes that agent and application write, in an hour.
        flushes_h: Flushes of agent and application, in an hour.
        inference_us: Further time of `Model.run` beside the session's own `run`, microseconds.
        counting_us: Part of this time for counts, running mark and sketches.
    """

    seconds: float
    agent_share: float
    resident_mb: float
    proportional_mb: float
    private_mb: float
    written_mb_h: float | None
    flushes_h: float | None
    inference_us: float
    counting_us: float


def measure_cost(seconds: float) -> Cost:
    """Measure a serving device for some time, on a real disk, when its update is long ago."""
    with (
        tempfile.TemporaryDirectory(prefix="edgepack-bench-") as name,
        tempfile.TemporaryDirectory(prefix="edgepack-bench-", dir="/dev/shm") as memory,
    ):
        folder, counters = Path(name), (Path(memory, "agent"), Path(memory, "application"))
        private, public = write_key_pair(generate_key(), folder / "release")
        bundle = make_bundle(folder / "bundle", load_private_key(private))
        with Broker(folder) as broker:
            controller = Controller(broker.port)
            device = Device(folder / "device", broker.url, public)
            # All else is the default; applications count in memory, as in a device's /run.
            settings = device.config.read_text()
            in_memory = f'runtime_dir = "{memory}"'
            device.config.write_text(settings.replace("interval_s = 0.5", in_memory))
            controller.hold(bundle)
            controller.offer(DEVICE, bundle.desired(1, soak_s=0.1))
            agent = _start(_AGENT, device.config, counters[0])
            application = None
            try:
                controller.wait_for(lambda it: it.state == "COMMITTED")
                application = _start(_APPLICATION, device.state_dir, counters[1])
                return _measure(counters, device.state_dir, agent, application, seconds)
            finally:
                for process in (agent, application):
                    if process is not None:
                        process.kill()
                        process.wait()
                controller.close()


def _start(program: str, argument: Path, counts: Path) -> subprocess.Popen[bytes]:
    counts.write_text(f"{0:20}")
    return subprocess.Popen([sys.executable, "-c", program, str(argument), str(counts)])


def _measure(
    counters: tuple[Path, Path],
    state_dir: Path,
    agent: subprocess.Popen[bytes],
    application: subprocess.Popen[bytes],
    seconds: float,
) -> Cost:
    # For so long after an update, windows are shorter; and the application has opened the model.
    time.sleep(TelemetryConfig().interval_s + 30)

    def read() -> tuple[float, int, int]:
        written = sum(_written(one.pid) for one in (agent, application))
        return _cpu_s(agent.pid), written, sum(int(path.read_text()) for path in counters)

    before = read()
    time.sleep(seconds)
    cpu_s, written, flushed = (now - then for now, then in zip(read(), before, strict=True))
    memory = {
        line.split()[0]: int(line.split()[1]) * 1024 / 1e6
        for line in Path(f"/proc/{agent.pid}/smaps_rollup").read_text().splitlines()[1:]
    }
    inference_us, counting_us = _time_inference(state_dir)
    return Cost(
        seconds=seconds,
        agent_share=cpu_s / seconds,
        resident_mb=memory["Rss:"],
        proportional_mb=memory["Pss:"],
        private_mb=memory["Private_Dirty:"],
        written_mb_h=written * 3600 / seconds / 1e6,
        flushes_h=flushed * 3600 / seconds,
        inference_us=inference_us,
        counting_us=counting_us,
    )


def _cpu_s(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _written(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def _time_inference(state_dir: Path, times: int = 2000, turns: int = 9) -> tuple[float, float]:
    """Return the least further time of an inference, and of its counts, microseconds."""
    x = np.zeros((1, WIDTH), np.float32)
    whole, bare, counts = [], [], []
    running: dict[int, float] = {}
    with open_model("tiny", state_dir, threads=1) as model:
        session, record = model._serving.session, model._serving.record
        for _ in range(turns):
            whole.append(_us(lambda: model.run({"x": x}), times))
            bare.append(_us(lambda: session.run({"x": x}), times))
            outputs = session.run({"x": x})

            def count(outputs: dict[str, np.ndarray] = outputs) -> None:
                running[1] = time.monotonic()
                running.pop(1, None)
                record.latency.record(1.0)
                record.sketches.offer({"x": x}, outputs)

            counts.append(_us(count, times))
    return statistics.median(whole) - statistics.median(bare), min(counts)


def _us(call: object, times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        call()  # type: ignore[operator]
    return (time.process_time() - began) / times * 1e6
