"""The form of a new rollout: one row a setting, as words of a page and as `RolloutSettings`."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

from edgepack.errors import FleetError
from edgepack.fleet.documents.gates import GATES, Gate
from edgepack.fleet.documents.rollouts import OnBreach, RolloutSettings, Selector

_DEFAULTS = RolloutSettings()
Kind = Literal["text", "number", "percent", "moment", "switch", "choice"]


class Field(msgspec.Struct, frozen=True):
    """One setting on the form.

    Attributes:
        name: Of the setting.
        label, hint: What it is called, and what that means.
        kind: How it is written.
        choices: Of a choice: each value and how it is shown.
    """

    name: str
    label: str
    hint: str = ""
    kind: Kind = "text"
    choices: tuple[tuple[str, str], ...] = ()

    @property
    def default(self) -> str:
        """The word that stands for the setting's default."""
        value = getattr(_DEFAULTS, self.name)
        match self.kind:
            case "switch" | "moment":
                return ""
            case "percent":
                return f"{100 * value:g}"
            case "number":
                return f"{value:g}"
            case _:
                return str(value)

    def read(self, word: str) -> object:
        """Return the setting that a word means.

        Raises:
            ValueError: It means none.
        """
        match self.kind:
            case "switch":
                return bool(word)
            case "moment":
                return datetime.fromisoformat(word).replace(tzinfo=UTC).timestamp()
            case "percent":
                return float(word) / 100
            case _:
                return word


SETTINGS = (
    Field("waves", "Waves", "devices in all after each, as numbers or %"),
    Field("soak_s", "Soak, seconds", "serves so long before it is committed", "number"),
    Field("deadline_s", "Deadline, seconds", "then a device counts as silent", "number"),
    Field(
        "max_failed_share", "Failures let pass, %", "of the decided devices of a wave", "percent"
    ),
    Field("min_sample", "Smallest sample", "decided devices before a wave is judged", "number"),
    Field(
        "on_breach",
        "On a breach",
        "what happens when a gate is breached",
        "choice",
        tuple((word, word) for word in get_args(OnBreach)),
    ),
)
PACE = (
    Field("window", "Window", "when devices are offered it, in their own time zone"),
    Field("not_before", "Not before", "UTC", "moment"),
    Field("max_per_site", "At once at a site", "0 for any number", "number"),
    Field("min_inferences", "Inferences", "real ones before it is committed", "number"),
    Field("approve_waves", "Each wave waits for a person", kind="switch"),
    Field("supersede", "Take devices over from older rollouts of the model", kind="switch"),
)
JUDGEMENT = (
    Field(
        "split_by",
        "Judged are",
        "what a breach is done to",
        "choice",
        (("", "all devices together"), ("hardware", "each hardware class alone")),
    ),
    Field("evidence_s", "Evidence, seconds", "a wave that is over waits for it", "number"),
    Field(
        "gate_evidence",
        "If a wave measured too little",
        "what the next wave does",
        "choice",
        (("required", "wait for a person"), ("optional", "begin")),
    ),
)
EXAMPLES = {"window": "mon-fri 02:00-05:00"}
_SELECTOR = ("to", "group", "where")


def gate_field(gate: Gate) -> str:
    """Name of a gate's field."""
    return f"gate_{gate.name}"


def fill_in(given: Mapping[str, str]) -> dict[str, str]:
    """Return the words of the whole form: what was given, and defaults elsewhere.

    Once the form was sent, a switch that is missing is off.
    """
    words = {field.name: field.default for field in (*SETTINGS, *PACE, *JUDGEMENT)}
    words |= {"release": "", "to": "group", "group": "", "where": ""}
    words |= {gate_field(gate): "" for gate in GATES}
    return words | {name: given[name] for name in words if name in given}


def read_selector(words: Mapping[str, str]) -> Selector:
    """Return the devices that the form means.

    Raises:
        FleetError: It names none.
    """
    kind, group, where = (words[name] for name in _SELECTOR)
    if kind == "all":
        return Selector(kind="all")
    if kind == "where":
        return Selector(kind="where", where=where)
    if not group:
        raise FleetError("name the devices: a group, an expression, or all")
    return Selector(kind="group", group=group)


def read_settings(words: Mapping[str, str]) -> RolloutSettings:
    """Return the settings that the form means; an empty word means the default.

    Raises:
        FleetError: A word means nothing.
    """
    values: dict[str, Any] = {"gates": {}}
    for field in (*SETTINGS, *PACE, *JUDGEMENT):
        if word := words[field.name].strip():
            try:
                values[field.name] = field.read(word)
            except (ValueError, OverflowError) as error:
                raise FleetError(
                    f"{field.label}: {word[:40]!r} makes no sense", found_in="the form"
                ) from error
    for gate in GATES:
        if word := words[gate_field(gate)].strip():
            values["gates"][gate.name] = _read_threshold(gate, word)
    try:
        return msgspec.convert(values, RolloutSettings, strict=False)
    except msgspec.ValidationError as error:
        raise FleetError(f"a number of the form makes no sense: {error}") from error


def _read_threshold(gate: Gate, word: str) -> float | None:
    if word == "off":
        return None
    try:
        number = float(word)
    except ValueError:
        number = -1
    if not 0 <= number < math.inf:
        raise FleetError(
            f"{word[:40]!r} is not a threshold of the gate {gate.name}",
            remedy=f"{gate.threshold:g}, or off",
        )
    return number
