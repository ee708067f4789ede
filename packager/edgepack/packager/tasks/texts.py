"""Recognize a reader: which output tells text, and whether its values do."""

import contextlib
from collections.abc import Mapping, Sequence

from onnx import shape_inference

from edgepack.errors import BuildError
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.graph.shape_inference import infer
from edgepack.packager.graph.text_heads import find_text_head
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tasks.findings import Findings
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.text.decoding import may_be_text, read_text, settle
from edgepack.tasks.text.head import TextHead
from edgepack.text import counted

_RANK = 3


def with_text_head(
    source: SourceModel, declarations: Mapping[str, OutputDeclaration]
) -> SourceModel:
    """Return the model with its text output, if a person, its metadata or the graph names the
    output.

    Args:
        source: The model.
        declarations: Declared outputs; an output declared otherwise is not a head.
    """
    is_float = {spec.name: spec.dtype.startswith("float") for spec in source.outputs}
    for name, entry in declarations.items():
        if entry.task == "text":
            head = TextHead(
                output=name,
                blank=entry.blank,
                is_of_tokens=not is_float[name],
                source="declared",
            )
            return source.with_parts(head.part)
    if not any(len(spec.shape) == _RANK or "int" in spec.dtype for spec in source.outputs):
        return source
    metadata = {entry.key: entry.value for entry in source.model.metadata_props}
    with contextlib.suppress(shape_inference.InferenceError):
        described = (*declarations, *source.description.outputs)
        found = find_text_head(infer(source.model), metadata, described)
        return source if found is None else source.with_parts(found.part)
    return source


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
        if head.is_of_tokens:
            raise BuildError(
                f"output {head.output!r} is declared as text, but does not hold whole numbers",
                found_in=f"[outputs.{toml_key(head.output)}]",
                remedy="leave task = 'text' out: edgepack recognizes the task",
            )
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
    how = "token by token"
    if not head.is_of_tokens:
        how = f"step by step, with class {head.blank} as the blank"
    notes = [
        f"A reader: '{head.output}' tells text {how} ({_TOLD[head.source]}). A variant is judged "
        "by how many more characters than the float model it is expected to have wrong."
    ]
    if not any(texts):
        notes.append(
            f"The float model reads nothing in {counted(len(texts), 'sample')} that were looked "
            "at: where it reads nothing at all, its values are judged. Give samples with text."
        )
    return tuple(notes)


_TOLD = {
    "graph": "told by its values",
    "metadata": "told by the model's metadata",
    "declared": "declared in [outputs]",
}
