"""A device at a tenth of the others' rate among fast devices: the delay of the fast devices."""

import tempfile
from pathlib import Path

import msgspec

from benchmarks.fleet.running import RunningFleet, wait_until
from benchmarks.transfer.bundle import make_archive
from benchmarks.transfer.fan_out import GROUP, SETTINGS, seconds
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from edgepack.fleet.documents.rollouts import Selector

SHARE = 0.1


class SlowDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements.

    Attributes:
        devices: Number of fast devices.
        alone_s: Time of the last fast device without the slow device.
        beside_s: The same with the slow device.
        sent_files: Bytes sent by the depot until then, in bundles.
    """

    devices: int
    alone_s: float
    beside_s: float
    sent_files: float


def slow_device(devices: int, size_bytes: int) -> SlowDevice:
    """Measure both cases in sequence."""
    alone_s, _ = _fast_ones(devices, size_bytes, 0.0)
    rate = size_bytes / alone_s
    beside_s, sent = _fast_ones(devices, size_bytes, rate * SHARE)
    return SlowDevice(
        devices=devices, alone_s=alone_s, beside_s=beside_s, sent_files=sent / size_bytes
    )


def _fast_ones(devices: int, size_bytes: int, slow_bytes_per_s: float) -> tuple[float, int]:
    """Return the time of the fast devices, with a slow device if a rate is given, and bytes."""
    with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as name:
        folder = Path(name)
        private, trust = write_key_pair(generate_key(), folder / "release")
        archive = make_archive(folder / "bundle", load_private_key(private), size_bytes)
        with RunningFleet(folder, trust) as fleet:
            fleet.simulate(devices, GROUP)
            if slow_bytes_per_s:
                takes = f"{slow_bytes_per_s:.0f}B/s"
                fleet.simulate(1, GROUP, "--takes", takes, prefix="slow")
            release = fleet.client.publish(archive)
            fleet.client.start_rollout(release, Selector(kind="group", group=GROUP), SETTINGS)
            fast = "to_state = 'VERIFIED' AND device NOT LIKE 'slow%'"
            query = f"SELECT count(*) FROM events WHERE {fast}"
            wait_until(lambda: fleet.ask(query) >= devices, "the fast ones have it")
            sent = sum(fleet.client.info().sent_bytes.values())
            return seconds(fleet, "max", fast) - seconds(
                fleet, "min", "to_state = 'DOWNLOADING'"
            ), sent
