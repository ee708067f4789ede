"""Fetch of a bundle by many devices: sent bytes of the depot, and time of the last device."""

from pathlib import Path

import msgspec

from benchmarks.fleet.running import Cost, RunningFleet, wait_until
from benchmarks.transfer.bundle import make_archive
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector

GROUP = "bench"
SETTINGS = RolloutSettings(waves="100%", soak_s=1.0, deadline_s=3000.0)


class FanOut(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements with a number of devices.

    Attributes:
        devices: Number of simulated devices, which check each chunk and keep none.
        size_bytes: Of the bundle's model.
        loss: Share of the chunks that devices lose, 0..1.
        sent_files: Bytes sent by the depot, in bundles.
        last_s: From the first device that downloads to the last that has everything, seconds.
        controller, broker: Resources used in the meantime.
    """

    devices: int
    size_bytes: int
    loss: float
    sent_files: float
    last_s: float
    controller: Cost
    broker: Cost


def fan_out(devices: int, size_bytes: int, folder: Path, loss: float = 0.0) -> FanOut:
    """Roll a bundle out to all devices at once.

    Args:
        devices: How many.
        size_bytes: Of the bundle's model.
        folder: For all files; must be empty.
        loss: Share of the chunks that each device loses, 0..1, each for itself.
    """
    private, trust = write_key_pair(generate_key(), folder / "release")
    archive = make_archive(folder / "bundle", load_private_key(private), size_bytes)
    with RunningFleet(folder, trust) as fleet:
        fleet.simulate(devices, GROUP, "--loss", f"{loss:.0%}")
        release = fleet.client.publish(archive)
        before = [fleet.cost(one) for one in (None, fleet.broker)]
        fleet.client.start_rollout(release, Selector(kind="group", group=GROUP), SETTINGS)
        query = "SELECT count(*) FROM events WHERE to_state = 'VERIFIED'"
        wait_until(lambda: fleet.ask(query) >= devices, "all devices have it")
        after = [fleet.cost(one) for one in (None, fleet.broker)]
        sent = sum(fleet.client.info().sent_bytes.values())
        began_s = seconds(fleet, "min", "to_state = 'DOWNLOADING'")
        ended_s = seconds(fleet, "max", "to_state = 'VERIFIED'")
    used = [
        msgspec.structs.replace(late, cpu_s=late.cpu_s - early.cpu_s)
        for early, late in zip(before, after, strict=True)
    ]
    return FanOut(
        devices=devices,
        size_bytes=size_bytes,
        loss=loss,
        sent_files=sent / size_bytes,
        last_s=ended_s - began_s,
        controller=used[0],
        broker=used[1],
    )


def seconds(fleet: RunningFleet, of: str, where: str) -> float:
    """Return the first (`min`) or last (`max`) moment of some events."""
    return fleet.ask(f"SELECT CAST({of}(at) * 1000 AS INTEGER) FROM events WHERE {where}") / 1000
