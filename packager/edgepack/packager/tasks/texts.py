"""Recognize a reader: which output tells text, and whether its values do.

A text recognizer takes pictures or sound and gives a row of classes for each step. The float
model's values decide whether its classes are characters with a blank (`metrics.texts.decoding`), or
the character list of PP-OCR's exporters.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import shape_inference

from edgepack.errors import BuildError
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.graph.queries import GraphIndex, index_graph
from edgepack.packager.graph.shape_inference import infer
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tasks.findings import Findings
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.text.decoding import may_be_text, read_text, settle
from edgepack.tasks.text.head import TextHead
from edgepack.text import counted

_RANK = 3


_TOLD = {
    "graph": "told by its values",
    "metadata": "told by the model's metadata",
    "declared": "declared in [outputs]",
}

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)

_FEWEST_CLASSES = 8
"""Ten digits and a blank are a reader's fewest."""

_CHARACTERS = "character"

_BESIDE = (1, 2)
"""Classes beside the listed characters: the blank, the first one, and the space that the list may
leave out, the last one."""


def with_text_head(
    source: SourceModel, declarations: Mapping[str, OutputDeclaration]
) -> SourceModel:
    """Return the model with its text output, if a person, its metadata or the graph names the
    output.

    Args:
        source: The model.
        declarations: Declared outputs; an output declared otherwise is not a head.

    Raises:
        BuildError: The declared blank is a character, no class is a character, or spaces are
            declared not to count and no class is known to be a space.
    """
    metadata = {entry.key: entry.value for entry in source.model.metadata_props}
    for spec in source.outputs:
        entry = declarations.get(spec.name)
        if entry is not None and entry.task == "text":
            return source.with_parts(_declared_head(spec, entry, metadata).part)
    if not any(len(spec.shape) == _RANK for spec in source.outputs):
        return source
    with contextlib.suppress(shape_inference.InferenceError):
        described = (*declarations, *source.description.outputs)
        found = find_text_head(infer(source.model), metadata, described)
        return source if found is None else source.with_parts(found.part)
    return source


def _declared_head(
    spec: TensorSpec, declared: OutputDeclaration, metadata: Mapping[str, str]
) -> TextHead:
    width = spec.shape[-1] if spec.shape else None
    characters = declared.class_names or read_characters(
        metadata, width if isinstance(width, int) else None
    )
    blank = declared.blank
    unread = tuple(kind for kind, letter in enumerate(characters) if not letter)
    known = unread[0] if len(unread) == 1 else None
    of_steps = blank is not None or spec.dtype.startswith("float")
    if characters and not "".join(characters).strip():
        raise BuildError(
            f"no class of output {spec.name!r} is a character: class_names has only spaces and "
            "empty names, and there is no text to read",
            found_in=f"[outputs.{toml_key(spec.name)}]",
            remedy="class_names = the character of each class; or leave class_names out",
        )
    if blank is None and of_steps:
        blank = known
    elif blank is not None and known not in (None, blank) and 0 <= blank < len(characters):
        raise BuildError(
            f"class {blank} of output {spec.name!r} is declared as the blank, and is the character "
            f"{characters[blank]!r} of class_names or of the model's metadata",
            found_in=f"[outputs.{toml_key(spec.name)}]",
            remedy=f'blank = {known}; or class_names = the character of each class, "" for the '
            "blank",
        )
    spaces = tuple(kind for kind in _spaces_of(characters) if kind != blank)
    if not (declared.spaces or spaces):
        raise BuildError(
            f"spaces of output {spec.name!r} are not to count, and no class is known as a space",
            found_in=f"[outputs.{toml_key(spec.name)}]",
            remedy='class_names = the character of each class, "" for the blank and " " for the '
            "space; or leave spaces out",
        )
    return TextHead(
        output=spec.name,
        blank=blank,
        empty=() if of_steps else unread,
        spaces=spaces,
        ignores_spaces=not declared.spaces,
        source="declared",
    )


def _spaces_of(characters: Sequence[str]) -> tuple[int, ...]:
    return tuple(kind for kind, letter in enumerate(characters) if letter.isspace())


def find_texts(head: TextHead, expected: Sequence[Outputs]) -> Findings:
    """Return findings if the float model's values are text.

    Args:
        head: Candidate output of text.
        expected: The float model's outputs on a few of the samples.

    Raises:
        BuildError: A person declared text, and the values are not text.
    """
    settled = settle(head, expected)
    if settled is None and head.source == "declared":
        raise BuildError(
            f"output {head.output!r} is declared as text, but its values show no blank class, "
            "or no class of that number"
            if head.blank is not None
            else f"output {head.output!r} is declared as text, but its values show no blank class",
            found_in=f"[outputs.{toml_key(head.output)}]",
            remedy="blank = the number of the blank class, if the output is "
            "[1, steps, classes] or [steps, 1, classes]",
        )
    if settled is None:
        return Findings(notes=(_ask(head),) if may_be_text(head, expected) else ())
    return Findings(parts=(settled.part,), notes=_describe(settled, expected))


def _ask(head: TextHead) -> str:
    return (
        f"Output '{head.output}' tells one of many classes at each step, and no blank among them: "
        "judged are its steps, which say little of text. "
        f"[outputs.{toml_key(head.output)}] with task = 'text' and blank = the number of the class "
        "that is no character in edgepack.toml if it is text."
    )


def _describe(head: TextHead, expected: Sequence[Outputs]) -> tuple[str, ...]:
    """Describe the evaluation of variants, and whether there is text to read."""
    texts = [read_text(head, outputs) for outputs in expected]
    how = "character by character"
    if head.empty:
        how += (
            f"; class {head.empty[0]}, which has no name, is nothing, and equal neighbours are two "
            f"characters: blank = {head.empty[0]} if they are steps of one"
        )
    if head.blank is not None:
        how = f"step by step, with class {head.blank} as the blank"
    notes = [
        f"A reader: '{head.output}' tells text {how} ({_TOLD[head.source]}). A variant is judged "
        "by how many more characters than the float model it is expected to have wrong."
        + _describe_spaces(head)
    ]
    if not any(texts):
        notes.append(
            f"The float model reads nothing in {counted(len(texts), 'sample')} that were looked "
            "at: where it reads nothing at all, its values are judged. Give samples with text."
        )
    return tuple(notes)


def _describe_spaces(head: TextHead) -> str:
    if head.ignores_spaces:
        return " Spaces do not count."
    if not head.spaces:
        return ""
    section = f"[outputs.{toml_key(head.output)}]"
    return f" Spaces count: {section} with task = 'text' and spaces = false if nobody needs them."


def find_text_head(
    graph: onnx.GraphProto, metadata: Mapping[str, str], ignored: Collection[str] = ()
) -> TextHead | None:
    """Find the output that may be text; None where none or several may be.

    Args:
        graph: The graph with its shapes.
        metadata: Metadata of the exporter.
        ignored: Outputs with a known meaning.
    """
    index = index_graph(graph)
    rows = [
        name
        for name in index.outputs
        if index.types.get(name) in _FLOATS
        and name not in ignored
        and _may_be_steps(index.shapes.get(name, ()))
    ]
    if len(rows) != 1 or not _takes_signal(index):
        return None
    classes = index.shapes[rows[0]][-1]
    characters = read_characters(metadata, classes)
    if characters:
        spaces = _spaces_of(characters)
        return TextHead(output=rows[0], blank=0, spaces=spaces, source="metadata")
    return TextHead(output=rows[0])


def read_characters(metadata: Mapping[str, str], classes: int | None) -> tuple[str, ...]:
    """Return the character of each class, "" for the blank; () if the metadata lists none.

    Args:
        metadata: Metadata of the exporter; PP-OCR's lists the characters.
        classes: Number of classes.
    """
    listed = metadata.get(_CHARACTERS, "").splitlines()
    if not "".join(listed).strip() or classes is None or classes - len(listed) not in _BESIDE:
        return ()
    return tuple(["", *listed, " "][:classes])


def _may_be_steps(shape: tuple[int | None, ...]) -> bool:
    if len(shape) != 3 or not (shape[-1] is None or shape[-1] >= _FEWEST_CLASSES):
        return False
    return any(size in (1, None) for size in shape[:2]) and shape[:2] != (1, 1)


def _takes_signal(index: GraphIndex) -> bool:
    """Return True if the inputs are floats and at most lengths: whole numbers are tokens."""
    fed = [name for name in index.inputs if name not in index.initializers]
    floats = [name for name in fed if index.types.get(name) in _FLOATS]
    others = [index.shapes.get(name, (None, None)) for name in fed if name not in floats]
    has_signal = any(len(index.shapes.get(name, ())) in (2, 3, 4) for name in floats)
    return has_signal and all(len(shape) < 2 for shape in others)
