"""Fetch of a bundle by a real agent, compared with plain transfers of the same bytes."""

import re
import statistics
import tempfile
from pathlib import Path

import msgspec

from benchmarks.fleet.running import Cost, RunningFleet, wait_until
from benchmarks.transfer.bundle import make_archive
from benchmarks.transfer.peers import nginx, paho_loop
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector

DEVICE = "bench-1"
_CAME = re.compile(r"(\d+) came in ([0-9.]+) s")


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of an agent that fetched a bundle.

    Attributes:
        size_bytes: Of the model.
        bytes_per_s: First chunk to last.
        verified_s: From the offer until every file is verified, seconds.
        agent, controller, broker: Resources used by each process from the offer on.
        sent_bytes: Bytes sent by the depot.
    """

    size_bytes: int
    bytes_per_s: float
    verified_s: float
    agent: Cost
    controller: Cost
    broker: Cost
    sent_bytes: int


class OneDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A size, several times, each turn with all ways; the median of each.

    Attributes:
        paho_bytes_per_s: A paho publisher and subscriber, messages of 64 KiB.
        nginx_bytes_per_s: A single GET.
        fetched: Of the middle turn of the agent.
        share_of_paho: The middle of the ratios within a turn, agent to paho.
    """

    paho_bytes_per_s: float
    nginx_bytes_per_s: float
    fetched: Fetched
    share_of_paho: float


def one_device(size_bytes: int, turns: int) -> OneDevice:
    """Measure all ways in turn."""
    plain, served, fetched = [], [], []
    for _ in range(turns):
        with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as folder:
            plain.append(paho_loop(size_bytes, Path(folder)))
            served.append(nginx(size_bytes, Path(folder)))
        with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as folder:
            fetched.append(fetch(size_bytes, Path(folder)))
    ratios = [one.bytes_per_s / loop for one, loop in zip(fetched, plain, strict=True)]
    return OneDevice(
        paho_bytes_per_s=statistics.median(plain),
        nginx_bytes_per_s=statistics.median(served),
        fetched=sorted(fetched, key=lambda one: one.bytes_per_s)[len(fetched) // 2],
        share_of_paho=statistics.median(ratios),
    )


def fetch(size_bytes: int, folder: Path, arguments: tuple[str, ...] = ()) -> Fetched:
    """Fetch a bundle with a real agent from a real fleet over a real mosquitto.

    Args:
        size_bytes: Of the model.
        folder: For all files; must be empty.
        arguments: Further arguments of `edgepack fleet serve`.
    """
    private, trust = write_key_pair(generate_key(), folder / "release")
    archive = make_archive(folder / "bundle", load_private_key(private), size_bytes)
    with RunningFleet(folder, trust, arguments) as fleet:
        fleet.client.enroll(DEVICE, group="bench", folder=folder / DEVICE, replace=True)
        agent = fleet.run_agent(folder / DEVICE / "agent.toml")
        wait_until(lambda: fleet.client.info().online == 1, "the agent is online")
        release = fleet.client.publish(archive)
        before = [fleet.cost(one) for one in (agent, None, fleet.broker)]
        fleet.client.start_rollout(
            release, Selector(kind="group", group="bench"), RolloutSettings(waves="100%")
        )
        said = "SELECT count(*) FROM events WHERE to_state = 'VERIFIED'"
        wait_until(lambda: fleet.ask(said) > 0, "the agent has verified it")
        after = [fleet.cost(one) for one in (agent, None, fleet.broker)]
        events = {event.to_state: event for event in fleet.client.events()}
        sent_bytes = sum(fleet.client.info().sent_bytes.values())
    came = _CAME.search(events["VERIFIED"].because)
    assert came is not None, events["VERIFIED"].because
    used = [
        msgspec.structs.replace(late, cpu_s=late.cpu_s - early.cpu_s)
        for early, late in zip(before, after, strict=True)
    ]
    return Fetched(
        size_bytes=size_bytes,
        bytes_per_s=int(came[1]) / max(float(came[2]), 1e-3),
        verified_s=events["VERIFIED"].at - events["OFFERED"].at,
        agent=used[0],
        controller=used[1],
        broker=used[2],
        sent_bytes=sent_bytes,
    )
