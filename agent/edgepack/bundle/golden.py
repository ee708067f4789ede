"""Golden samples: sample inputs with the float model's outputs, and how outputs are compared.

The file is an uncompressed `.npz` that `numpy.load` reads, with the members
`inputs/<sample>/<name>` and `outputs/<sample>/<name>`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.bundle.metadata import GoldenAgreement, GoldenTolerance
from edgepack.bundle.plain_arrays import encode_arrays, read_arrays
from edgepack.durable import write_file
from edgepack.errors import BundleError
from edgepack.tasks.contract import Agreement
from edgepack.tasks.table import task_of

Tensor = npt.NDArray[np.generic]
Tensors = Mapping[str, Tensor]

MAX_GOLDEN_BYTES = 1024**3

_TOKENS = "tokens"
"""The task whose golden outputs may have the last rows alone."""


class Golden(msgspec.Struct, frozen=True, kw_only=True):
    """Golden samples, in order.

    Attributes:
        inputs: Inputs of each sample, tensors by input name.
        outputs: Outputs of the float model, tensors by output name.
    """

    inputs: tuple[dict[str, Tensor], ...]
    outputs: tuple[dict[str, Tensor], ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of outputs with golden outputs.

    Attributes:
        right: Every output held its tolerance.
        because: Observed result, as a sentence.
        worst_nrmse: Greatest root-mean-square error of any output over the root-mean-square of the
            expected values; infinite if an output is missing or not finite.
        task_lost: Greatest share of a task that is lost, 0…1; None if no task was compared.
    """

    right: bool
    because: str
    worst_nrmse: float
    task_lost: float | None = None


def write_golden(path: Path, golden: Golden) -> None:
    """Write golden samples; the same samples always give the same bytes. The file is not flushed.

    Raises:
        BundleError: Inputs and outputs differ in number, or a tensor is not numeric.
    """
    if len(golden.inputs) != len(golden.outputs) or not golden.inputs:
        raise BundleError(
            f"golden samples have {len(golden.inputs)} inputs and {len(golden.outputs)} outputs",
            found_in=path.name,
        )
    tensors = {
        f"{group}/{index}/{name}": sample[name]
        for group, samples in (("inputs", golden.inputs), ("outputs", golden.outputs))
        for index, sample in enumerate(samples)
        for name in sorted(sample)
    }
    try:
        content = encode_arrays(tensors)
    except ValueError as error:
        raise BundleError(f"{error}, golden samples are numeric", found_in=path.name) from error
    write_file(path, content, lasting=False)


def read_golden(path: Path) -> Golden:
    """Read golden samples; run no code of the file, and bound its size.

    Raises:
        BundleError: The file is missing, too long or not an archive, or a member is malformed.
    """
    try:
        if path.stat().st_size > MAX_GOLDEN_BYTES:
            raise BundleError(f"golden samples exceed {MAX_GOLDEN_BYTES} bytes", found_in=str(path))
        golden = _golden(read_arrays(path, path.stat().st_size))
    except OSError as error:
        raise BundleError(
            f"cannot read golden samples: {error.strerror or error}", found_in=str(path)
        ) from error
    except ValueError as error:
        raise BundleError(f"golden samples are malformed: {error}", found_in=str(path)) from error
    return golden


def compare_outputs(
    expected: Sequence[Tensors],
    got: Sequence[Tensors],
    tolerances: Mapping[str, GoldenTolerance],
    agreements: Sequence[GoldenAgreement] = (),
) -> Comparison:
    """Compare outputs with golden outputs, each output over all samples at once.

    1. Every output that is judged must be there, with the shape and the finite values expected.
    2. Every task must keep its share.
    3. Values must be within their tolerance, whatever the outputs mean.

    Args:
        expected: The float model's outputs, a dict per sample.
        got: Outputs of this device, in the same order.
        tolerances: By output name; outputs without a tolerance are not compared by value.
        agreements: Required shares of the tasks.
    """
    if not (tolerances or agreements) or len(expected) != len(got) or not expected:
        return Comparison(
            right=False,
            because=f"nothing to judge: {len(tolerances)} tolerances, {len(expected)} samples "
            f"expected, {len(got)} computed",
            worst_nrmse=math.inf,
        )
    got = _without_rows_before(expected, got, agreements)
    judged = [
        _judge(name, [sample.get(name) for sample in expected], [s.get(name) for s in got], limits)
        for name, limits in sorted(tolerances.items())
    ]
    for agreement in agreements:
        judged.append(_judge_task(agreement, expected, got))
    wrong = [verdict for verdict in judged if not verdict.right]
    return Comparison(
        right=not wrong,
        because="; ".join(verdict.because for verdict in wrong or judged),
        worst_nrmse=max(verdict.worst_nrmse for verdict in judged),
        task_lost=max((one.task_lost for one in judged if one.task_lost is not None), default=None),
    )


def _without_rows_before(
    expected: Sequence[Tensors], got: Sequence[Tensors], agreements: Sequence[GoldenAgreement]
) -> Sequence[Tensors]:
    """Return the outputs with only the last rows of scores of tokens, as many as are expected.

    A golden text is whole, and only the scores of its last places are in the golden samples.
    """
    names = [name for one in agreements if one.part.task == _TOKENS for name in one.part.outputs]

    def last(name: str, value: Tensor, wanted: Tensor | None) -> Tensor:
        if name not in names or wanted is None or value.ndim != wanted.ndim or value.ndim < 3:
            return value
        return value[..., -wanted.shape[-2] :, :] if wanted.shape[-2] else value

    return [
        {name: last(name, value, want.get(name)) for name, value in have.items()}
        for want, have in zip(expected, got, strict=True)
    ]


MOST_LOST = 0.5
"""Share of its task that an inference may lose where both releases gave the same answer: half of
its rows, boxes or characters. A decision, or a character of a line of text, counts by how sure the
previous release was of it."""


def is_same_answer(
    before: Tensors,
    now: Tensors,
    tolerances: Mapping[str, GoldenTolerance],
    agreements: Sequence[GoldenAgreement] = (),
    others: Sequence[Tensors] = (),
) -> bool:
    """Decide whether two releases of a model gave the same answer to an inference.

    Neither release is the float model of the other. So for outputs with a decision, such as
    classes, boxes or text, only the answer counts: the confidence changes with every training.
    Values have a spread over samples, which a single inference lacks: golden outputs give it.

    Args:
        before: Outputs of the previous release.
        now: Outputs of the release that serves.
        tolerances, agreements: Of the release that serves; outputs with neither do not count.
        others: Golden outputs of either release. Without them, outputs without a decision are
            compared by their tolerances.
    """
    told: set[str] = set()
    for agreement in agreements:
        is_decision = task_of(agreement.part).is_decision
        if not (is_decision or others):
            continue
        known = () if is_decision else others
        told |= set(agreement.part.outputs)
        measured = _measure(agreement, [*known, before], [*known, now])
        if isinstance(measured, str) or measured.losses[-1] > MOST_LOST:
            return False
    by_value = {name: limits for name, limits in tolerances.items() if name not in told}
    if not by_value:
        return bool(told)
    return compare_outputs([before], [now], by_value).right


def _judge_task(
    agreement: GoldenAgreement, expected: Sequence[Tensors], got: Sequence[Tensors]
) -> Comparison:
    """Evaluate a task's outputs by the task's measure."""
    measured = _measure(agreement, expected, got)
    if isinstance(measured, str):
        return Comparison(right=False, because=measured, worst_nrmse=math.inf, task_lost=1.0)
    return Comparison(
        right=measured.value >= agreement.keep,
        because=f"{agreement.part.task}: {measured.words}, keeps {measured.value:.4f} "
        f"(at least {agreement.keep:g})",
        worst_nrmse=0.0,
        task_lost=min(max(1.0 - measured.value, 0.0), 1.0),
    )


def _measure(
    agreement: GoldenAgreement, expected: Sequence[Tensors], got: Sequence[Tensors]
) -> Agreement | str:
    """Measure a task's outputs, or return why the outputs cannot be compared."""
    for name in agreement.part.outputs:
        for want, have in zip(expected, got, strict=True):
            because = _why_unlike(want.get(name), have.get(name))
            if because:
                return f"output '{name}' {because}"
    opened = task_of(agreement.part).open(agreement.part, [dict(one) for one in expected])
    return opened.measure([dict(one) for one in got])


def _why_unlike(want: Tensor | None, have: Tensor | None) -> str:
    """Return why a task cannot compare two tensors; the number of rows may differ."""
    if want is None:
        return "is not in the golden samples"
    if have is None:
        return "was not computed"
    if want.ndim != have.ndim:
        return f"has {have.ndim} axes, expected {want.ndim}"
    return ""


def _judge(
    name: str,
    expected: Sequence[Tensor | None],
    got: Sequence[Tensor | None],
    limits: GoldenTolerance,
) -> Comparison:
    wants: list[npt.NDArray[np.float64]] = []
    haves: list[npt.NDArray[np.float64]] = []
    for want, have in zip(expected, got, strict=True):
        because = _why_incomparable(want, have)
        if because or want is None or have is None:
            return Comparison(
                right=False, because=f"output '{name}' {because}", worst_nrmse=math.inf
            )
        is_finite = np.isfinite(want)
        wants.append(want[is_finite].astype(np.float64))
        haves.append(have[is_finite].astype(np.float64))
    cosine, nrmse = _distance(np.concatenate(wants), np.concatenate(haves))
    seen = f"output '{name}': cosine {cosine:.5f} (at least {limits.cosine_min:g}), "
    seen += f"nrmse {nrmse:.5f} (at most {limits.nrmse_max:g})"
    right = cosine >= limits.cosine_min and nrmse <= limits.nrmse_max
    return Comparison(right=right, because=seen, worst_nrmse=nrmse)


def _why_incomparable(want: Tensor | None, have: Tensor | None) -> str:
    if want is None:
        return "is not in the golden samples"
    if have is None:
        return "was not computed"
    if want.shape != have.shape:
        return f"has the shape {list(have.shape)}, expected {list(want.shape)}"
    if not np.array_equal(np.isfinite(want), np.isfinite(have)):
        return f"has {int(np.sum(~np.isfinite(have)))} values that are not finite"
    return ""


def _distance(want: npt.NDArray[np.float64], have: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return cosine similarity and relative root-mean-square error of two vectors, both (n,)."""
    size, norm = float(np.linalg.norm(want)), float(np.linalg.norm(have))
    error = float(np.linalg.norm(have - want))
    if error == 0.0:
        return 1.0, 0.0
    if size == 0.0 or norm == 0.0:
        return 0.0, math.inf if size == 0.0 else error / size
    return float(want @ have) / (size * norm), error / size


def _golden(tensors: dict[str, Tensor]) -> Golden:
    inputs, outputs = _group(tensors, "inputs"), _group(tensors, "outputs")
    if not inputs or len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} samples with inputs, {len(outputs)} with outputs")
    if sum(map(len, inputs + outputs)) != len(tensors):
        raise ValueError("there is a member that is neither input nor output")
    return Golden(inputs=inputs, outputs=outputs)


def _group(tensors: dict[str, Tensor], group: str) -> tuple[dict[str, Tensor], ...]:
    samples: dict[int, dict[str, Tensor]] = {}
    for member, tensor in tensors.items():
        head, _, rest = member.partition("/")
        number, _, name = rest.partition("/")
        if head == group and name:
            samples.setdefault(int(number), {})[name] = tensor
    if sorted(samples) != list(range(len(samples))):
        raise ValueError(f"the {group} are not numbered from 0")
    return tuple(samples[index] for index in range(len(samples)))
