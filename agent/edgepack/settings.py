"""Settings that a struct declares once: bounds, label and help in `Meta` of each field.

The declaration yields the checks and the API's schema (msgspec), the options of commands
(`edgepack.setting_options`) and the fields of forms (`declared`):

    soak_s: Annotated[
        float,
        Meta(ge=0, title="Soak, seconds", description="Seconds until the commit.",
             extra={"option": "--soak"}),
    ] = 10.0

Keys of `extra`: `option` (default: from the name), `unit`, `metavar`, `variable` (of the
environment), `example`, `part` (of a form), and `words` (how a form shows each value of a Literal).
"""

import typing
from typing import Any, Literal

import msgspec

Unit = Literal["", "share", "time", "existing file", "folder"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Declared setting.

    Attributes:
        name: Name of the field.
        kind: Its type, without None; of a tuple, the type of its items.
        is_repeated: It is a tuple.
        default: Its default.
        choices: The values of a Literal.
        low, high: Its bounds; None where there are none.
        label, help: Label in a form; a sentence of help.
        option: Its option of a command.
        unit: `share` is written as 10%, `time` as 2030-01-31T02:00; a path is a file that may be
            missing, an `existing file` or a `folder`.
        metavar, variable: How help shows its value; the environment variable that sets it.
        example: A value that a form shows.
        part: The section of the setting in a form.
        words: How a form shows each of `choices`.
    """

    name: str
    kind: Any
    is_repeated: bool = False
    default: Any
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    label: str
    help: str
    option: str
    unit: Unit = ""
    metavar: str = ""
    variable: str = ""
    example: str = ""
    part: str = ""
    words: dict[str, str] = {}


def declared(struct: type[msgspec.Struct]) -> dict[str, Setting]:
    """Return the settings of a struct by name: its fields that have a `Meta` with a description."""
    found = {}
    for field in msgspec.structs.fields(struct):
        kind, meta = _split(field.type)
        if not meta.description:
            continue
        options = [one for one in typing.get_args(kind) if one is not type(None)]
        bounds, is_choice = meta, typing.get_origin(kind) is Literal
        is_repeated = typing.get_origin(kind) is tuple
        if is_choice:
            kind = str
        elif options:
            kind, bounds = _split(options[0])
        found[field.name] = Setting(
            name=field.name,
            kind=kind,
            is_repeated=is_repeated,
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
