"""Options of commands for settings that a struct declares (`edgepack.settings`)."""

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from edgepack.settings import Setting


def option_of(
    setting: Setting, types: Mapping[Any, click.ParamType[Any]] = {}
) -> Callable[..., Any]:
    """Return the click option of a setting.

    Args:
        setting: Its declaration.
        types: Types of options by type of setting, beyond numbers, words and paths.
    """
    words: dict[str, Any] = {"help": setting.help, "envvar": setting.variable or None}
    if setting.kind is bool:
        return click.option(setting.option, setting.name, is_flag=True, **words)
    words |= {"multiple": setting.is_repeated, "metavar": setting.metavar or None}
    default = setting.default
    if isinstance(default, int | float | str) and default != "":
        words["default"] = f"{default:.0%}" if setting.unit == "share" else default
        words["show_default"] = True
    kind = types.get(setting.kind) or _click_type(setting)
    return click.option(setting.option, setting.name, type=kind, **words)


def options_of(
    settings: Mapping[str, Setting], types: Mapping[Any, click.ParamType[Any]] = {}
) -> Callable[..., Any]:
    """Return a decorator that gives a command the options of settings, in their order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for setting in reversed([*settings.values()]):
            command = option_of(setting, types)(command)
        return command

    return decorate


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
    if setting.kind is Path:
        is_folder, is_there = setting.unit == "folder", setting.unit == "existing file"
        return click.Path(is_there, not is_folder, is_folder, path_type=Path)
    if setting.kind is int:
        low, high = (None if bound is None else int(bound) for bound in (setting.low, setting.high))
        return click.INT if low is high is None else click.IntRange(low, high)
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
            self.fail(f"{value!r} is not a share such as 10% or 0.1", param, ctx)
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
    """A time in ISO 8601; local without a zone."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is not a time such as 2030-01-31T02:00", param, ctx)
