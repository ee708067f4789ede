"""The form of a new rollout: a field for each setting that `RolloutSettings` declares."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from edgepack.decoding import convert_value
from edgepack.errors import FleetError
from edgepack.fleet.documents.gates import GATES, Gate
from edgepack.fleet.documents.rollouts import SETTINGS, RolloutSettings, Selector
from edgepack.settings import Setting
from edgepack.toml_errors import describe_type_error

Kind = Literal["text", "number", "percent", "moment", "switch", "choice"]


class Field(msgspec.Struct, frozen=True):
    """A declared setting on the form."""

    setting: Setting

    @property
    def name(self) -> str:
        """Name of the setting, and of the form's field."""
        return self.setting.name

    @property
    def kind(self) -> Kind:
        """Kind of form field."""
        if self.setting.kind is bool:
            return "switch"
        if self.setting.choices:
            return "choice"
        if self.setting.unit:
            return "percent" if self.setting.unit == "share" else "moment"
        return "number" if self.setting.kind in (int, float) else "text"

    @property
    def default(self) -> str:
        """The word that stands for the setting's default."""
        value = self.setting.default
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
        """Return the value that a word stands for.

        Raises:
            ValueError: The word stands for no value.
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


FIELDS = {name: Field(setting) for name, setting in SETTINGS.items()}
_SELECTOR = ("to", "group", "where")


def fields_of(part: str) -> list[Field]:
    """Return the fields of a part of the form, in their order."""
    return [field for field in FIELDS.values() if field.setting.part == part]


def gate_field(gate: Gate) -> str:
    """Name of a gate's field."""
    return f"gate_{gate.name}"


def fill_in(given: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the whole form: given values, else defaults.

    Once the form was sent, a switch that is missing is off.
    """
    words = {field.name: field.default for field in FIELDS.values()}
    words |= {"release": "", "to": "group", "group": "", "where": ""}
    words |= {gate_field(gate): "" for gate in GATES}
    return words | {name: given[name] for name in words if name in given}


def read_selector(words: Mapping[str, str]) -> Selector:
    """Return the devices that the form means.

    Raises:
        FleetError: The form selects no device.
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
    for field in FIELDS.values():
        if word := words[field.name].strip():
            try:
                values[field.name] = field.read(word)
            except (ValueError, OverflowError) as error:
                raise FleetError(
                    f"{field.setting.label}: {word[:40]!r} makes no sense", found_in="the form"
                ) from error
    for gate in GATES:
        if word := words[gate_field(gate)].strip():
            values["gates"][gate.name] = _read_threshold(gate, word)
    try:
        return convert_value(values, RolloutSettings, strict=False)
    except msgspec.ValidationError as error:
        found = describe_type_error(error, values, RolloutSettings)
        label = FIELDS[found.place].setting.label if found.place in FIELDS else found.place
        problem = found.problem.replace(found.place, label, 1)
        raise FleetError(problem, remedy=found.remedy) from error


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
