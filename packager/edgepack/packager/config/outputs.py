"""Meaning of a model's outputs: `[outputs]` of an `edgepack.toml`.

The float model's own values show most meanings (`tasks.describe`), but not an embedding that the
application normalizes, or an output without readers.
"""

import difflib
import unicodedata
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import msgspec

from edgepack.errors import BuildError
from edgepack.packager.profiles.section import Section, Stated, StatedName
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key, unknown_name
from edgepack.tasks.description import IGNORED, OWN, SELECTION, UNKNOWN, ClassNames, TaskOutputs
from edgepack.tasks.detections.layouts import (
    LAYOUTS,
    Activation,
    BoxOrder,
    DetectionHead,
    LayoutName,
)
from edgepack.tasks.level import THRESHOLD
from edgepack.tasks.pages.measure import NAME as PAGES
from edgepack.tasks.table import TASKS
from edgepack.tasks.values.strict import FEWEST_IN_MAP
from edgepack.text import counted

DECLARABLE = (*(name for name in TASKS if name not in (SELECTION, UNKNOWN, OWN, PAGES)), IGNORED)
"""Tasks that a person may write."""

_ROLES = ("scores", "labels", "sizes", "offsets")

NAMED = ("classification", "probabilities", "threshold", "segmentation", "detections", "text")
"""Tasks whose classes may have names."""

_KEYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(NAMED, ("class_names",)),
    "detections": ("layout", *_ROLES, "classes", "order", "activation", "class_names"),
    "threshold": (THRESHOLD, "class_names"),
    "anomaly": (THRESHOLD,),
    "tokens": ("tokens",),
    "text": ("blank", "spaces", "class_names"),
    "values": ("tolerance",),
}
"""Further keys of a task."""

_OF_WHOLE_NUMBERS = ("transcript",)
_OF_ROWS_OF_CLASSES = ("classification", "probabilities")
_OF_FLOATS = ("embedding", "probabilities", "depth", "picture", "sound", "anomaly")
_OF_MAPS = ("segmentation", "depth", "picture")
_BY_HEADS = ("detections", "text")

_Distance = Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]


class OutputDeclaration(Section, frozen=True, kw_only=True):
    """`[outputs.NAME]`: the task that evaluates an output.

    Attributes:
        task: Name of the task, of `edgepack.tasks.table`, or `ignored`: nobody reads the output.
        blank: Of text, the number of the blank class, if values do not decide.
        spaces: Of text, whether spaces count.
        tolerance: Of values, the distance from the truth at which a vector (last axis) is still
            right, in the output's unit, or one for each column; None where no distance decides.
        tokens: Of a decoder, the input that takes tokens, where graph and names do not tell.
        layout: Of detections, the layout of boxes and scores; by default recognized from the graph.
        scores, labels, sizes, offsets: Of a layout with several outputs, the other outputs' names.
        classes: Number of classes, if a place has further numbers after its scores.
        order: Which four numbers make a box, where the layout and the values do not tell.
        activation: Activation of raw scores, likewise.
        threshold: Of scores, the number from which on a score counts.
        class_names: Names of the classes in their order; of text the character of each class, ""
            for the blank.
    """

    task: str
    blank: Annotated[int, msgspec.Meta(ge=0)] | None = None
    spaces: bool = True
    tolerance: _Distance | Annotated[tuple[_Distance, ...], msgspec.Meta(min_length=1)] | None = (
        None
    )
    tokens: StatedName = ""
    layout: LayoutName | None = None
    scores: StatedName = ""
    labels: StatedName = ""
    sizes: StatedName = ""
    offsets: StatedName = ""
    classes: Stated = 0
    order: BoxOrder = ""
    activation: Activation = ""
    threshold: Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)] | None = None
    class_names: Annotated[ClassNames, msgspec.Meta(min_length=1)] = ()

    @property
    def further_outputs(self) -> dict[str, str]:
        """The other outputs of detections, by role."""
        roles = {role: getattr(self, role) for role in _ROLES}
        return {role: name for role, name in roles.items() if name}


def declared_parts(declarations: Mapping[str, OutputDeclaration]) -> tuple[TaskOutputs, ...]:
    """Return the outputs that a person described, except detectors and recognizers.

    Args:
        declarations: By output name, checked.
    """
    parts: dict[str, TaskOutputs] = {}
    for name, declared in declarations.items():
        if declared.task in _BY_HEADS:
            continue
        key = "" if declared.task == "values" else name
        known = parts[key].outputs if key in parts else ()
        names = (*known, name)
        parts[key] = TaskOutputs(
            task=declared.task,
            outputs=names,
            source="declared",
            settings=_settings({name: declarations[name] for name in names}),
        )
    return tuple(parts.values())


def _settings(declarations: Mapping[str, OutputDeclaration]) -> dict[str, Any]:
    """Return the settings of outputs that a task evaluates together."""
    tolerances = {name: one.tolerance for name, one in declarations.items() if one.tolerance}
    settings: dict[str, Any] = {"tolerances": tolerances} if tolerances else {}
    levels = [one.threshold for one in declarations.values() if one.threshold is not None]
    return settings | ({THRESHOLD: levels[0]} if levels else {})


def declared_head(declarations: Mapping[str, OutputDeclaration]) -> DetectionHead | None:
    """Return the outputs that tell boxes, where a person says how; None where the graph does.

    Args:
        declarations: By output name, checked.
    """
    for name, declared in declarations.items():
        if declared.layout is not None and not LAYOUTS[declared.layout].is_by_level:
            further = [declared.further_outputs[role] for role in LAYOUTS[declared.layout].others]
            return DetectionHead(
                layout=declared.layout,
                outputs=(name, *further),
                classes=declared.classes,
                order=declared.order,
                activation=declared.activation,
                source="declared",
            )
    return None


def declared_keys(part: TaskOutputs) -> dict[str, Any]:
    """Return the further keys that declare a part of a description, besides `task`.

    Args:
        part: Outputs of a task; the first output is declared.
    """
    keys: dict[str, Any]
    if part.task == "detections":
        head = DetectionHead.of(part)
        keys = {"layout": head.layout}
        keys |= dict(zip(head.facts.others, part.outputs[1:], strict=False))
        told = {"classes": head.classes, "order": head.order, "activation": head.activation}
        return keys | {key: value for key, value in told.items() if value}
    if tolerance := part.settings.get("tolerances", {}).get(part.outputs[0]):
        return {"tolerance": list(tolerance) if isinstance(tolerance, tuple) else tolerance}
    if part.task == "text":
        blank = part.settings.get("blank")
        keys = {} if blank is None else {"blank": blank}
        return keys | ({"spaces": False} if part.settings.get("ignores_spaces") else {})
    if THRESHOLD in part.settings:
        return {THRESHOLD: part.settings[THRESHOLD]}
    return {}


def check_outputs(
    declarations: Mapping[str, OutputDeclaration],
    outputs: tuple[TensorSpec, ...],
    inputs: Collection[TensorSpec] = (),
) -> None:
    """Reject declarations that do not fit the model.

    Args:
        declarations: By output name.
        outputs: The model's outputs.
        inputs: The model's inputs.

    Raises:
        BuildError: An unknown task, output or input, tokens that are no whole numbers, an output
            of a shape or type that the task cannot have, or no output that is not ignored.
    """
    by_name = {spec.name: spec for spec in outputs}
    for name, declaration in declarations.items():
        where = f"outputs.{toml_key(name)}"
        if declaration.task not in DECLARABLE:
            raise _unknown_task(declaration.task, where)
        if name not in by_name:
            raise unknown_name(
                "output", name, by_name, where, lambda near: f"[outputs.{toml_key(near)}]"
            )
        if declaration.task in _OF_FLOATS:
            _check_floats(declaration.task, by_name[name], where)
        if declaration.task in _OF_WHOLE_NUMBERS:
            _check_whole(declaration.task, by_name[name], where)
        is_scores = declaration.task == "classification" and by_name[name].dtype.startswith("float")
        if is_scores or declaration.task in ("embedding", "tokens"):
            _check_row(declaration.task, by_name[name], where)
        _check_size(declaration.task, by_name[name], where)
        _check_keys(declaration, where)
        _check_tokens(declaration.tokens, inputs, where)
        _check_detections(declaration, by_name, where)
        _check_names(declaration, by_name[name], where)
        _check_tolerance(declaration.tolerance, by_name[name], where)
    kinds = [declarations[name].task if name in declarations else "" for name in by_name]
    if set(kinds) == {"ignored"}:
        raise BuildError(
            "every output is ignored: no output is left for evaluating a variant",
            found_in="outputs",
            remedy='task = "classification", "embedding" or "values" for at least one, or leave '
            "one out",
        )


def _check_tokens(name: str, inputs: Collection[TensorSpec], where: str) -> None:
    """Reject an input of tokens that the model lacks, or that holds no whole numbers."""
    by_name = {spec.name: spec for spec in inputs}
    if name and name not in by_name:
        raise unknown_name("input", name, by_name, where, lambda near: f'tokens = "{near}"')
    if name and not by_name[name].dtype.startswith(("int", "uint")):
        raise BuildError(
            f"input {name!r} holds {by_name[name].dtype}, and tokens are whole numbers",
            found_in=where,
            remedy='the input that takes tokens, or task = "classification" where none does',
        )


def _unknown_task(task: str, where: str) -> BuildError:
    """Return the error of a task that cannot be declared."""
    near = difflib.get_close_matches(task, DECLARABLE, n=1)
    remedy = f'task = "{near[0]}"' if near else "leave the section out: values may show the task"
    if task == OWN:
        remedy = "--metric or --labels: both decide without a declaration"
    return BuildError(
        f"there is no task {task!r}; tasks are {', '.join(DECLARABLE)}",
        found_in=where,
        remedy=remedy,
    )


def _check_keys(declaration: OutputDeclaration, where: str) -> None:
    keys = _KEYS.get(declaration.task, ())
    plain = msgspec.to_builtins(OutputDeclaration(task=declaration.task))
    given = [
        name for name, value in msgspec.to_builtins(declaration).items() if value != plain[name]
    ]
    strange = [name for name in given if name not in keys]
    if strange:
        kinds = [task for task, own in _KEYS.items() if strange[0] in own]
        raise BuildError(
            f"task {declaration.task!r} is given {strange[0]!r}, a key of {kinds[0]!r}",
            found_in=where,
            remedy=f'task = "{kinds[0]}", or leave {strange[0]} out',
        )


def _check_detections(
    declaration: OutputDeclaration, outputs: Mapping[str, TensorSpec], where: str
) -> None:
    layout = declaration.layout
    if layout is None:
        return
    roles = LAYOUTS[layout].others
    if sorted(declaration.further_outputs) != sorted(roles):
        raise BuildError(
            f"layout {layout!r} holds {LAYOUTS[layout].words}, and "
            f"{' and '.join(declaration.further_outputs) or 'no other output'} "
            f"{'are' if len(declaration.further_outputs) > 1 else 'is'} named",
            found_in=where,
            remedy=", ".join(f'{role} = "OUTPUT"' for role in roles) or "leave the others out",
        )
    unknown = [name for name in declaration.further_outputs.values() if name not in outputs]
    if unknown:
        raise unknown_name("output", unknown[0], outputs, where, lambda near: repr(near))


def _check_tolerance(tolerance: object, spec: TensorSpec, where: str) -> None:
    """Reject tolerances by column that are not one for each column of the last axis."""
    width = spec.shape[-1] if spec.shape else "none"
    if isinstance(tolerance, tuple) and len(tolerance) != width:
        raise BuildError(
            f"tolerance has {counted(len(tolerance), 'number')}, and the last axis of {spec} has "
            f"{width if isinstance(width, int) else 'no fixed number of'} columns",
            found_in=where,
            remedy="tolerance = one number for all columns, or a list with one for each",
        )


def _check_names(declaration: OutputDeclaration, spec: TensorSpec, where: str) -> None:
    names = declaration.class_names
    is_text = declaration.task == "text"
    wrong = next((it for it in names if not _is_name(it, is_text)), None)
    if wrong is not None:
        raise BuildError(
            f"class_names has {wrong!a}, which has no letters or is not printable",
            found_in=where,
            remedy="give each class a name of printable letters",
        )
    again = None if is_text else next((it for it in names if names.count(it) > 1), None)
    if again is not None:
        raise BuildError(
            f"class_names has {again!r} more than once",
            found_in=where,
            remedy="give each class a name of its own",
        )
    width = spec.shape[-1] if spec.shape else 1
    is_scores = (is_text or declaration.task in _OF_ROWS_OF_CLASSES) and spec.dtype.startswith(
        "float"
    )
    if names and is_scores and isinstance(width, int) and width not in (1, len(names)):
        raise BuildError(
            f"class_names has {counted(len(names), 'name')} for {spec}, "
            f"which has {counted(width, 'class', 'classes')}",
            found_in=where,
            remedy="one name for each class, in the order of the scores",
        )


def _is_name(name: str, is_text: bool) -> bool:
    """Return True for a printable name; of text, a space of any width counts as printable."""
    letters = [letter for letter in name if unicodedata.category(letter) != "Zs"]
    return (name if not is_text else "".join(letters)).isprintable() and bool(letters or is_text)


def _check_floats(task: str, spec: TensorSpec, where: str) -> None:
    if not spec.dtype.startswith("float"):
        raise BuildError(
            f"output {spec.name!r} holds {spec.dtype}: {task} are floats, and whole numbers are "
            "decisions that are taken already",
            found_in=where,
            remedy='leave it out, or task = "values" or "ignored"',
        )


def _check_whole(task: str, spec: TensorSpec, where: str) -> None:
    if "int" not in spec.dtype:
        raise BuildError(
            f"output {spec.name!r} holds {spec.dtype}: the tokens of a {task} are whole numbers",
            found_in=where,
            remedy='task = "text" for a row of classes for each step, "tokens" for the scores of '
            "the next token",
        )


def _check_size(task: str, spec: TensorSpec, where: str) -> None:
    """Reject an output that is too small for a task; open sizes may be large enough."""
    sizes = [size if isinstance(size, int) else FEWEST_IN_MAP for size in spec.shape]
    is_map = sum(size > 1 for size in sizes) > 1
    is_long = bool(sizes) and sizes[-1] >= FEWEST_IN_MAP
    if (task in _OF_MAPS and not is_map) or (task == "sound" and not is_long):
        wanted = f"{FEWEST_IN_MAP} values in a row" if task == "sound" else "two axes of places"
        raise BuildError(
            f"{spec} is too small for {task}, which needs {wanted}",
            found_in=where,
            remedy='task = "classification", "threshold" or "values"',
        )


def _check_row(task: str, spec: TensorSpec, where: str) -> None:
    if spec.shape and spec.shape[-1] != 1:
        return
    raise BuildError(
        f"{spec} has no row of numbers along its last axis, and {task} are one",
        found_in=where,
        remedy='task = "values"',
    )
