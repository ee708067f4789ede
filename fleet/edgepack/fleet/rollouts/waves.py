"""Who is addressed when: waves, written as `1,10%,100%`, and the devices in each."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from edgepack.errors import FleetError

_STEP = re.compile(r"(\d{1,9})(%?)")
MAX_WAVES = 100


class WaveStep(msgspec.Struct, frozen=True, kw_only=True):
    """How many devices a rollout has addressed in all once this wave has begun.

    Attributes:
        amount: A number of devices, or a percentage of the rollout's devices.
        unit: Which of the two.
    """

    amount: int
    unit: str

    def reach(self, device_count: int) -> int:
        """Devices addressed so far, this wave included; a percentage is rounded up."""
        if self.unit == "percent":
            return min(device_count, math.ceil(device_count * self.amount / 100))
        return min(device_count, self.amount)


def parse_waves(text: str) -> tuple[WaveStep, ...]:
    """Reads waves as a person writes them.

    Args:
        text: Steps separated by commas, each a number of devices or a percentage, each the
            total addressed so far; the last one is `100%`.

    Raises:
        FleetError: A step is no number, they do not grow or are too many, or the last does not
            reach everyone.
    """
    steps: list[WaveStep] = []
    words = text.split(",")
    if len(words) > MAX_WAVES:
        raise FleetError(
            f"a rollout has at most {MAX_WAVES} waves, this one has {len(words)}",
            found_in=f"--waves {text[:40]}…",
            remedy="--waves 1,10%,100%",
        )
    for word in words:
        found = _STEP.fullmatch(word.strip())
        if found is None:
            raise FleetError(
                f"wave {word.strip()[:40]!r} is neither a number of devices nor a percentage",
                found_in=f"--waves {text[:80]}",
                remedy="--waves 1,10%,100%",
            )
        unit = "percent" if found[2] else "devices"
        steps.append(WaveStep(amount=int(found[1]), unit=unit))
    if any(step.amount < 1 or (step.unit == "percent" and step.amount > 100) for step in steps):
        raise FleetError(
            "a wave addresses at least 1 device and at most 100%",
            found_in=f"--waves {text}",
            remedy="--waves 1,10%,100%",
        )
    for unit in ("devices", "percent"):
        amounts = [step.amount for step in steps if step.unit == unit]
        if any(later <= earlier for earlier, later in pairwise(amounts)):
            raise FleetError(
                "waves must grow: each says how many devices have been addressed in all",
                found_in=f"--waves {text}",
                remedy="--waves 1,10%,100%",
            )
    if steps[-1] != WaveStep(amount=100, unit="percent"):
        raise FleetError(
            "the last wave must reach every device",
            found_in=f"--waves {text}",
            remedy=f"--waves {text},100%",
        )
    return tuple(steps)


def divide_devices(
    online_by_device: Mapping[str, bool], steps: Sequence[WaveStep], salt: str
) -> dict[str, int]:
    """Puts every device into exactly one wave.

    Devices that are online go first, so that a first wave of one device gives an answer; among
    equals the order is that of a salted digest, so that not the same devices always go first.

    Args:
        online_by_device: Device ids, each with whether it is online.
        steps: The waves; a wave that small numbers leave without devices is passed over.
        salt: Rollout id.

    Returns:
        Wave index from 0 by device id, without gaps.
    """

    def order(device: str) -> tuple[bool, str]:
        return not online_by_device[device], hashlib.sha256(f"{salt}/{device}".encode()).hexdigest()

    devices = sorted(online_by_device, key=order)
    waves: dict[str, int] = {}
    index = 0
    addressed = 0
    for step in steps:
        reach = step.reach(len(devices))
        if reach <= addressed:
            continue
        waves.update(dict.fromkeys(devices[addressed:reach], index))
        addressed = reach
        index += 1
    return waves
