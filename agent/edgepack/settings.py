"""Settings that a struct declares once: bounds, label and help in `Meta` of each field.

The declaration yields the checks and the API's schema (msgspec), the options of commands
(`option_of`) and the fields of forms (`declared`):

    soak_s: Annotated[
        float,
        Meta(ge=0, title="Soak, seconds", description="Seconds until the commit.",
             extra={"option": "--soak"}),
    ] = 10.0

Keys of `extra`: `option` (default: from the name), `unit` (`share`, `time`), `example`, `part` (of
a form), and `words` (how a form shows each value of a Literal).
"""

import math
import typing
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

import click
import msgspec

Unit = Literal["", "share", "time"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One declared setting.

    Attributes:
        name: Name of the field.
        kind: Its type, without None.
        default: Its default.
        choices: The values of a Literal.
        low, high: Its bounds; None where there are none.
        label, help: What a form calls it; one sentence that explains it.
        option: Its option of a command.
        unit: `share` is written as 10%, `time` as 2030-01-31T02:00.
        example: A value that a form shows.
        part: The part of a form where it stands.
        words: How a form shows each of `choices`.
    """

    name: str
    kind: Any
    default: Any
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    label: str
    help: str
    option: str
    unit: Unit = ""
    example: str = ""
    part: str = ""
    words: dict[str, str] = {}


def declared(struct: type[msgspec.Struct]) -> dict[str, Setting]:
    """Return the settings of a struct whose fields have a `Meta` with a description, by name."""
    found = {}
    for field in msgspec.structs.fields(struct):
        kind, meta = _split(field.type)
        if not meta.description:
            continue
        options = [one for one in typing.get_args(kind) if one is not type(None)]
        bounds, is_choice = meta, typing.get_origin(kind) is Literal
        if is_choice:
            kind = str
        elif options:
            kind, bounds = _split(options[0])
        found[field.name] = Setting(
            name=field.name,
            kind=kind,
            default=field.default,
            choices=tuple(map(str, options)) if is_choice else (),
            low=bounds.ge,
            high=bounds.le,
            label=meta.title or field.name,
            help=meta.description,
            **{"option": f"--{field.name.replace('_', '-')}"} | (meta.extra or {}),
        )
    return found


def _split(kind: Any) -> tuple[Any, msgspec.Meta]:
    """Return a type without its annotation, and the annotation."""
    if typing.get_origin(kind) is typing.Annotated:
        bare, *notes = typing.get_args(kind)
        return bare, next((one for one in notes if isinstance(one, msgspec.Meta)), msgspec.Meta())
    return kind, msgspec.Meta()


def option_of(setting: Setting) -> Callable[..., Any]:
    """Return the click option of a setting."""
    words: dict[str, Any] = {"help": setting.help}
    if setting.kind is bool:
        return click.option(setting.option, setting.name, is_flag=True, **words)
    if setting.default not in (None, ""):
        default = setting.default
        words["default"] = f"{default:.0%}" if setting.unit == "share" else default
        words["show_default"] = True
    return click.option(setting.option, setting.name, type=_click_type(setting), **words)


def values_of(settings: Mapping[str, Setting], words: dict[str, Any]) -> dict[str, Any]:
    """Take the settings out of a command's parameters; a setting that was not given is absent."""
    given = {name: words.pop(name) for name in settings if name in words}
    return {name: value for name, value in given.items() if value is not None}


def _click_type(setting: Setting) -> click.ParamType[Any]:
    if setting.choices:
        return click.Choice([word for word in setting.choices if word])
    if setting.unit == "share":
        return Share()
    if setting.unit == "time":
        return Moment()
    if setting.kind is int:
        low, high = (None if bound is None else int(bound) for bound in (setting.low, setting.high))
        return click.IntRange(low, high)
    if setting.kind is float:
        return Number(setting.low, setting.high)
    return click.STRING


class Share(click.ParamType[float]):
    """A share, as `10%` or `0.1`."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is no share such as 10% or 0.1", param, ctx)
        if not 0 <= number <= 1:
            self.fail(f"{value!r} is not between 0% and 100%", param, ctx)
        return number


class Number(click.FloatRange):
    """A finite number within bounds."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Moment(click.ParamType[float]):
    """A time, as ISO 8601 writes it; local where it names no zone."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is no time such as 2030-01-31T02:00", param, ctx)
