"""Runs a pipeline's variant on its providers in a process of its own: a provider may crash.

    python -m edgepack.packager.stages.running_child

The request is JSON on stdin, the answer JSON on stdout, and the tensors are `.npz` files.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from edgepack.agent.runtime.child import keep_stdout_clean, run_child, take_request
from edgepack.agent.runtime.one_cpu import keep_to_one_cpu, providers_of
from edgepack.agent.runtime.opening import open_session
from edgepack.bundle.manifest import Placement, Variant
from edgepack.bundle.plain_arrays import encode_arrays, read_arrays
from edgepack.decoding import decode_json
from edgepack.durable import write_file
from edgepack.errors import BuildError, EdgepackError
from edgepack.python_child import python_command
from edgepack.tasks.arrays import Outputs, Tensor

CHILD = python_command("edgepack.packager.stages.running_child")
_LEAST = 2
_TIMEOUT_S = 1800.0


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Request: run a variant on samples.

    Attributes:
        folder: Folder of the bundle's files.
        variant: The variant.
        inputs, outputs: Files of tensors, members `NUMBER/NAME`.
        count: Samples in `inputs`.
        limit_s: Samples are begun for this long, seconds; two at the least.
    """

    folder: str
    variant: Variant
    inputs: str
    outputs: str
    count: int
    limit_s: float


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """Answer.

    Attributes:
        count: Samples that were run, the first ones.
        latency_ms: Median time of a sample, milliseconds.
        placement: Nodes that the providers took.
        problem: Reason for no result; "" with a result.
    """

    count: int = 0
    latency_ms: float = 0.0
    placement: Placement | None = None
    problem: str = ""


def run_variant(
    folder: Path,
    variant: Variant,
    samples: Sequence[Mapping[str, Tensor]],
    work: Path,
    limit_s: float,
) -> tuple[Ran, tuple[Outputs, ...]]:
    """Run a pipeline's variant on samples.

    Args:
        folder: Folder of the bundle's files.
        variant: The variant.
        samples: Inputs of each sample.
        work: Folder for the tensors.
        limit_s: Samples are begun for this long, seconds.

    Raises:
        BuildError: The process ended without a result, or a stage cannot run.
    """
    inputs, outputs = work / "inputs.npz", work / "outputs.npz"
    named = {f"{n}/{name}": one for n, feeds in enumerate(samples) for name, one in feeds.items()}
    write_file(inputs, encode_arrays(named), lasting=False)
    asked = Asked(
        folder=str(folder),
        variant=variant,
        inputs=str(inputs),
        outputs=str(outputs),
        count=len(samples),
        limit_s=limit_s,
    )
    ending = run_child(CHILD, msgspec.json.encode(asked), timeout_s=_TIMEOUT_S)
    ran = Ran(problem=ending.because) if ending.answer is None else decode_json(ending.answer, Ran)
    if ran.problem:
        raise BuildError(
            f"variant '{variant.name}' does not run: {ran.problem}",
            found_in=", ".join(f"{one.component} on {one.provider}" for one in variant.parts),
            remedy="choose other profiles for its stages",
        )
    made = read_arrays(outputs, outputs.stat().st_size)
    return ran, tuple(_members(made, number) for number in range(ran.count))


def _members(arrays: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    start = f"{number}/"
    return {name[len(start) :]: one for name, one in arrays.items() if name.startswith(start)}


def main() -> None:
    """Read a request, run and answer. For the child."""
    asked = decode_json(take_request(), Asked)
    with keep_stdout_clean(_TIMEOUT_S) as answer:
        try:
            ran = _run(asked)
        except (EdgepackError, ValueError) as error:
            ran = Ran(problem=error.problem if isinstance(error, EdgepackError) else str(error))
        answer.write(msgspec.json.encode(ran) + b"\n")


def _run(asked: Asked) -> Ran:
    keep_to_one_cpu(*providers_of(asked.variant))
    given = read_arrays(Path(asked.inputs), Path(asked.inputs).stat().st_size)
    session = open_session(Path(asked.folder), asked.variant)
    made: dict[str, Tensor] = {}
    taken: list[float] = []
    started = time.monotonic()
    for number in range(asked.count):
        if number >= _LEAST and time.monotonic() - started > asked.limit_s:
            break
        outputs, taken_ms = session.run_timed(_members(given, number))
        taken.append(taken_ms)
        made |= {f"{number}/{name}": one for name, one in outputs.items()}
    write_file(Path(asked.outputs), encode_arrays(made), lasting=False)
    return Ran(
        count=len(taken),
        latency_ms=sorted(taken)[len(taken) // 2],
        placement=session.placement,
    )


if __name__ == "__main__":
    main()
