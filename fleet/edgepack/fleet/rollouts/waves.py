"""Waves, written as `1,10%,100%`, with the devices of each wave.

A wave may also select devices by an expression (`site=berlin`), and `each site` makes a wave for
each value of the label `site`.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from edgepack.errors import FleetError
from edgepack.fleet.database.where import Attributes, parse_where
from edgepack.text import natural_order

if TYPE_CHECKING:  # a command that parses waves loads no library for databases
    from edgepack.fleet.database.candidates import Candidate

_STEP = re.compile(r"(\d{1,9})(%?)")
_COMMA = re.compile(r""",(?=(?:[^'"]|'[^']*'|"[^"]*")*$)""")
"""One that stands in no quotes."""
MAX_WAVES = 100
MAX_LENGTH = 4000
SITE = "site"
EACH_SITE = "each site"


class WaveStep(msgspec.Struct, frozen=True, kw_only=True):
    """Step of waves: the total of addressed devices after this wave has begun.

    Attributes:
        amount: A number of devices, or a percentage of the rollout's devices.
        unit: `where` for the devices of an expression, `sites` for site after site, or a count or
            share.
        where: The expression.
    """

    amount: int = 0
    unit: str
    where: str = ""

    def reach(self, device_count: int) -> int:
        """Return devices addressed so far, this wave included; a percentage is rounded up."""
        if self.unit == "percent":
            return min(device_count, math.ceil(device_count * self.amount / 100))
        return min(device_count, self.amount)


def parse_waves(text: str) -> tuple[WaveStep, ...]:
    """Parse waves from text.

    Args:
        text: Steps separated by commas. A number of devices or a percentage is the total addressed
            so far; an expression, or `each site`, adds devices. The last step is `100%`.

    Raises:
        FleetError: A step is not a number, the steps do not grow or are too many, or the last step
            does not reach every device.
    """
    steps: list[WaveStep] = []
    words = _COMMA.split(text[:MAX_LENGTH])
    if len(words) > MAX_WAVES:
        raise FleetError(
            f"a rollout has at most {MAX_WAVES} waves, this one has {len(words)}",
            found_in=f"--waves {text[:40]}…",
            remedy="--waves 1,10%,100%",
        )
    for word in words:
        if "=" in word:
            parse_where(word.strip())
            steps.append(WaveStep(unit="where", where=word.strip()))
            continue
        if word.strip() == EACH_SITE:
            steps.append(WaveStep(unit="sites"))
            continue
        found = _STEP.fullmatch(word.strip())
        if found is None:
            raise FleetError(
                f"wave {word.strip()[:40]!r} is neither a number of devices nor a percentage",
                found_in=f"--waves {text[:80]}",
                remedy="--waves 1,10%,100%",
            )
        unit = "percent" if found[2] else "devices"
        steps.append(WaveStep(amount=int(found[1]), unit=unit))
    numbers = [step for step in steps if step.unit in ("devices", "percent")]
    if any(step.amount < 1 or (step.unit == "percent" and step.amount > 100) for step in numbers):
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
    online_by_device: Mapping[str, bool],
    steps: Sequence[WaveStep],
    salt: str,
    attributes_of: Callable[[str], Attributes] = lambda _: {},
) -> dict[str, int]:
    """Put every device into exactly a single wave.

    Online devices come first, so that a first wave with a single device gives an answer; equal
    devices are sorted by a salted digest, so that the first devices vary.

    Args:
        online_by_device: Device ids, each with its online state.
        steps: The waves; a wave that small numbers leave without devices is passed over.
        salt: Rollout id.
        attributes_of: Labels and facts of a device, by its id.

    Returns:
        Wave index from 0 by device id, without gaps.

    Raises:
        FleetError: There are more waves than a rollout has.
    """

    left = sorted(online_by_device, key=lambda device: _salted(salt, device))
    left.sort(key=lambda device: not online_by_device[device])
    waves: dict[str, int] = {}
    index = 0
    for step in steps:
        for chosen in _choose(step, left, len(online_by_device), attributes_of):
            if chosen:
                waves.update(dict.fromkeys(chosen, index))
                index += 1
        left = [device for device in left if device not in waves]
    if index > MAX_WAVES:
        raise FleetError(
            f"a rollout has at most {MAX_WAVES} waves, this one has {index}: one for each site",
            remedy="--waves 1,10%,100% --max-per-site 2",
        )
    return waves


def divide(
    rows: "Sequence[Candidate]", steps: Sequence[WaveStep], salt: str, control: str = ""
) -> dict[str, int]:
    """Divide enrolled devices, with the attributes that `keys_of` names.

    Args:
        rows: The devices.
        steps: The waves.
        salt: Rollout id.
        control: Devices that come last, in a wave of their own; see `choose_controls`.
    """
    controls = choose_controls({row.id: row.hardware_class for row in rows}, control, salt)
    online = {row.id: row.online for row in rows if row.id not in controls}
    by_id = {row.id: row.attributes for row in rows} if keys_of(steps) else {}
    waves = divide_devices(online, steps, salt, lambda device: by_id[device])
    return waves | dict.fromkeys(controls, max(waves.values(), default=-1) + 1)


def choose_controls(class_of: Mapping[str, str], control: str, salt: str) -> frozenset[str]:
    """Return the devices of the control group: of each hardware class the same share.

    Args:
        class_of: Hardware class by device.
        control: A number of devices, or a percentage, rounded up; "" for none. One device at least
            is left for the waves.
        salt: Rollout id: equal rollouts of a fleet hold other devices back.
    """
    if not control:
        return frozenset()
    amount, total = int(control.removesuffix("%")), len(class_of)
    count = math.ceil(total * amount / 100) if control.endswith("%") else amount
    sizes, seen = Counter(class_of.values()), Counter[str]()
    ranked = []
    for device in sorted(class_of, key=lambda one: _salted(f"control/{salt}", one)):
        name = class_of[device]
        seen[name] += 1
        ranked.append(((seen[name] - 0.5) / sizes[name], device))
    return frozenset(device for _, device in sorted(ranked)[: min(count, total - 1)])


def _salted(salt: str, device: str) -> bytes:
    return hashlib.sha256(f"{salt}/{device}".encode()).digest()


def keys_of(steps: Iterable[WaveStep]) -> frozenset[str]:
    """Return the labels and facts that waves go by."""
    keys: set[str] = set()
    for step in steps:
        if step.unit == "where":
            keys |= parse_where(step.where).keys
        elif step.unit == "sites":
            keys.add(SITE)
    return frozenset(keys)


def _choose(
    step: WaveStep,
    left: Sequence[str],
    device_count: int,
    attributes_of: Callable[[str], Attributes],
) -> list[list[str]]:
    """Return the devices of a step that no earlier wave has, wave by wave."""
    match step.unit:
        case "where":
            matches = parse_where(step.where).matches
            return [[device for device in left if matches(attributes_of(device))]]
        case "sites":
            sites: dict[str, list[str]] = {}
            for device in left:
                for site in attributes_of(device).get(SITE, ()):
                    sites.setdefault(site, []).append(device)
            return [sites[site] for site in sorted(sites, key=natural_order)]
    return [list(left[: max(0, step.reach(device_count) - (device_count - len(left)))])]
