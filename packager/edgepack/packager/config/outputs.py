"""What a model's outputs mean: `[outputs]` of an `edgepack.toml`.

The float model's own values tell most of it (`metrics.output_kinds`); not that a row of numbers is
an embedding which the application brings to unit length, or that nobody reads an output.
"""

import difflib
from collections.abc import Mapping
from typing import Literal

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import Section
from edgepack.packager.tensors.meanings import Meaning
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key


class OutputDeclaration(Section, frozen=True, kw_only=True):
    """`[outputs.NAME]`: how an output is judged.

    Attributes:
        kind: `scores`: of each row the highest wins; `embedding`: a vector that is compared with
            other samples'; `values`: numbers that count each for itself, such as boxes, quantities
            and probabilities that are held against a threshold; `ignored`: nobody reads it.
    """

    kind: Literal["scores", "embedding", "values", "ignored"]

    @property
    def meaning(self) -> Meaning:
        """The same for those who judge."""
        return Meaning(self.kind)


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
            near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.4)
            raise BuildError(
                f"the model has no output {name!r}; it has {', '.join(by_name)}",
                found_in=where,
                remedy=f"[outputs.{toml_key(near[0] if near else next(iter(by_name)))}]",
            )
        if declaration.kind in ("scores", "embedding"):
            _check_row(declaration.kind, by_name[name], where)
    kinds = [declarations[name].kind if name in declarations else "" for name in by_name]
    if set(kinds) == {"ignored"}:
        raise BuildError(
            "every output is ignored: nothing is left to judge a variant by",
            found_in=f"{path}, outputs",
            remedy='kind = "scores", "embedding" or "values" for at least one, or leave one out',
        )


def _check_row(kind: str, spec: TensorSpec, where: str) -> None:
    if not spec.dtype.startswith("float"):
        raise BuildError(
            f"output {spec.name!r} holds {spec.dtype}: {kind} are floats, and whole numbers are "
            "decisions that are taken already",
            found_in=where,
            remedy='leave it out, or kind = "values" or "ignored"',
        )
    if spec.shape and spec.shape[-1] != 1:
        return
    raise BuildError(
        f"{spec} has no row of numbers along its last axis, and {kind} are one",
        found_in=where,
        remedy='kind = "values"',
    )
