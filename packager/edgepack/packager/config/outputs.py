"""What a model's outputs mean: `[outputs]` of an `edgepack.toml`.

The float model's own values tell most of it (`metrics.output_kinds`); not that a row of numbers is
an embedding which the application brings to unit length, or that nobody reads an output.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from edgepack.errors import BuildError
from edgepack.packager.profiles.section import Section
from edgepack.packager.tensors.meanings import Meaning
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key, unknown_name
from edgepack.tasks.detections.layouts import (
    LAYOUTS,
    Activation,
    BoxOrder,
    DetectionHead,
    LayoutName,
)

_ROLES = ("scores", "labels", "sizes", "offsets")

_KEYS: Mapping[str, tuple[str, ...]] = {
    "detections": ("layout", *_ROLES, "classes", "order", "activation"),
    "tokens": ("tokens",),
    "ctc": ("blank",),
}
"""By kind, the keys that it has beside."""

_OF_ROWS = ("scores", "embedding")
_OF_FLOATS = (*_OF_ROWS, "depth", "image", "audio")


class OutputDeclaration(Section, frozen=True, kw_only=True):
    """`[outputs.NAME]`: how an output is judged.

    Attributes:
        kind: `scores`: of each row the highest wins; `embedding`: a vector that is compared with
            other samples'; `values`: numbers that count each for itself, such as boxes, quantities
            and probabilities that are held against a threshold; `detections`: boxes, judged by
            what is found; `segmentation`, `depth`, `image`, `audio`: maps and sound, judged by the
            field's own measures; `tokens`: a decoder's scores of the next token; `ctc`: text, step
            by step; `text`: text as tokens that are chosen already; `ignored`: nobody reads it.
        blank: Of text, the number of the class that is not a character, where values do not tell.
        tokens: Of a decoder, the input that takes tokens, where graph and names do not tell.
        layout: Of detections, how boxes and scores lie; where it is left out, the graph tells it.
        scores, labels, sizes, offsets: Of a layout of several outputs, the others' names.
        classes: Number of classes, where more follows a place's scores than they.
        order: Which four numbers make a box, where the layout and the values do not tell.
        activation: What makes a score of what is given, likewise.
    """

    kind: Literal[
        "scores",
        "embedding",
        "values",
        "detections",
        "segmentation",
        "depth",
        "image",
        "audio",
        "tokens",
        "ctc",
        "text",
        "ignored",
    ]
    blank: int | None = None
    tokens: str = ""
    layout: LayoutName | None = None
    scores: str = ""
    labels: str = ""
    sizes: str = ""
    offsets: str = ""
    classes: int = 0
    order: BoxOrder = ""
    activation: Activation = ""

    @property
    def meaning(self) -> Meaning | None:
        """The same for those who judge; None for what is judged by the task as a whole."""
        return None if self.kind in ("detections", "tokens", "ctc", "text") else Meaning(self.kind)

    @property
    def beside(self) -> dict[str, str]:
        """The other outputs of detections, by role."""
        roles = {role: getattr(self, role) for role in _ROLES}
        return {role: name for role, name in roles.items() if name}


def declared_head(declarations: Mapping[str, OutputDeclaration]) -> DetectionHead | None:
    """The outputs that tell boxes, where a person says how; None where nobody does.

    Args:
        declarations: By output name, checked.
    """
    for name, declared in declarations.items():
        if declared.layout is not None:
            beside = [declared.beside[role] for role in LAYOUTS[declared.layout].roles[1:]]
            return DetectionHead(
                layout=declared.layout,
                outputs=(name, *beside),
                classes=declared.classes,
                order=declared.order,
                activation=declared.activation,
                told_by="[outputs]",
            )
    return None


def check_outputs(
    declarations: Mapping[str, OutputDeclaration], outputs: tuple[TensorSpec, ...], path: str
) -> None:
    """Refuses declarations that do not fit the model.

    Args:
        declarations: By output name.
        outputs: The model's outputs.
        path: The file they were read from, for messages.

    Raises:
        BuildError: An unknown output, scores or an embedding where there is no row of floats, or
            no output that is not ignored.
    """
    by_name = {spec.name: spec for spec in outputs}
    for name, declaration in declarations.items():
        where = f"{path}, outputs.{toml_key(name)}"
        if name not in by_name:
            raise unknown_name(
                "output", name, by_name, where, lambda near: f"[outputs.{toml_key(near)}]"
            )
        if declaration.kind in _OF_FLOATS:
            _check_floats(declaration.kind, by_name[name], where)
        if declaration.kind in _OF_ROWS:
            _check_row(declaration.kind, by_name[name], where)
        _check_keys(declaration, where)
        _check_detections(declaration, by_name, where)
    kinds = [declarations[name].kind if name in declarations else "" for name in by_name]
    if set(kinds) == {"ignored"}:
        raise BuildError(
            "every output is ignored: nothing is left to judge a variant by",
            found_in=f"{path}, outputs",
            remedy='kind = "scores", "embedding" or "values" for at least one, or leave one out',
        )


def _check_keys(declaration: OutputDeclaration, where: str) -> None:
    keys = _KEYS.get(declaration.kind, ())
    plain = msgspec.to_builtins(OutputDeclaration(kind=declaration.kind))
    given = [
        name for name, value in msgspec.to_builtins(declaration).items() if value != plain[name]
    ]
    strange = [name for name in given if name not in keys]
    if strange:
        kinds = [kind for kind, own in _KEYS.items() if strange[0] in own]
        raise BuildError(
            f"kind {declaration.kind!r} is given {strange[0]!r}, a key of {kinds[0]!r}",
            found_in=where,
            remedy=f'kind = "{kinds[0]}", or leave {strange[0]} out',
        )


def _check_detections(
    declaration: OutputDeclaration, outputs: Mapping[str, TensorSpec], where: str
) -> None:
    layout = declaration.layout
    if layout is None:
        return
    roles = LAYOUTS[layout].roles[1:]
    if sorted(declaration.beside) != sorted(roles):
        raise BuildError(
            f"layout {layout!r} holds {LAYOUTS[layout].words}, and "
            f"{' and '.join(declaration.beside) or 'no other output'} "
            f"{'are' if len(declaration.beside) > 1 else 'is'} named",
            found_in=where,
            remedy=", ".join(f'{role} = "OUTPUT"' for role in roles) or "leave the others out",
        )
    unknown = [name for name in declaration.beside.values() if name not in outputs]
    if unknown:
        raise unknown_name("output", unknown[0], outputs, where, lambda near: repr(near))


def _check_floats(kind: str, spec: TensorSpec, where: str) -> None:
    if not spec.dtype.startswith("float"):
        raise BuildError(
            f"output {spec.name!r} holds {spec.dtype}: {kind} are floats, and whole numbers are "
            "decisions that are taken already",
            found_in=where,
            remedy='leave it out, or kind = "values" or "ignored"',
        )


def _check_row(kind: str, spec: TensorSpec, where: str) -> None:
    if spec.shape and spec.shape[-1] != 1:
        return
    raise BuildError(
        f"{spec} has no row of numbers along its last axis, and {kind} are one",
        found_in=where,
        remedy='kind = "values"',
    )
