"""Gives samples the states that the float model has there, where the files hold only its first.

Sound or video is usually saved without the state of the later model: the state input is zero in
every file. Ranges taken from that would not cover a state that has heard something. So the float
model runs once through all samples in file order, and each sample gets the state at its place.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from edgepack.packager.config.inputs import InputDeclaration
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.samples.recurrence import confirm_states, find_states
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.reference import open_as_given
from edgepack.packager.tensors.sequence import Feeds, Samples, State
from edgepack.tasks.arrays import Tensor


def follow_states(
    opened: OpenedSamples,
    source: SourceModel,
    declarations: Mapping[str, InputDeclaration],
    *,
    folder: Path,
    progress: Progress,
) -> OpenedSamples:
    """Find out which inputs are states, and give each sample its own.

    Args:
        opened: The samples.
        source: The model of the samples.
        declarations: Declared inputs by name.
        folder: Where states are kept.
        progress: Called for each inference.

    Returns:
        The samples with their states, and notes on both; unchanged for a model without states.

    Raises:
        BuildError: A declared state does not fit the model.
    """
    found = find_states(source.inputs, source.outputs, declarations)
    if not found.states:
        return replace(opened, notes=(*opened.notes, *found.notes))
    run = open_as_given(source)
    found = confirm_states(found, run, opened.samples.read(0))
    samples, notes = carry_states(opened.samples, found.states, run, folder, progress)
    return replace(opened, samples=samples, notes=(*opened.notes, *found.notes, *notes))


def carry_states(
    samples: Samples,
    states: tuple[State, ...],
    run: Run,
    folder: Path,
    progress: Progress,
) -> tuple[Samples, tuple[str, ...]]:
    """Return the samples with states, each its own.

    Args:
        samples: In file order, which is taken for the order of time.
        states: Inputs that are fed from outputs.
        run: The float model.
        folder: Where states are kept: on disk, since a cache may be large.
        progress: Called for each inference.

    Returns:
        The samples, and notes on the changes. A state that differs from sample to sample in the
        files is left unchanged.
    """
    known = replace(samples, states=states)
    given = [state for state in states if _is_one_value(samples, state.input)]
    if not given or samples.count < 2:
        return known, ()
    folder.mkdir(parents=True, exist_ok=True)
    first = samples.read(0)
    kept = {
        state.input: np.lib.format.open_memmap(
            folder / f"{number}.npy",
            mode="w+",
            dtype=first[state.input].dtype,
            shape=(samples.count, *first[state.input].shape),
        )
        for number, state in enumerate(given)
    }
    carried = {state.input: first[state.input] for state in given}
    for index, feeds in enumerate(samples):
        for name, value in carried.items():
            kept[name][index] = value
        outputs = run({**feeds, **carried})
        carried = {state.input: outputs[state.output] for state in given}
        progress(BuildStep(what="carrying states", done=index + 1, total=samples.count))

    def read(index: int) -> Feeds:
        own: dict[str, Tensor] = {name: np.array(values[index]) for name, values in kept.items()}
        return {**samples.read(index), **own}

    names = ", ".join(f"'{state.input}'" for state in given)
    note = (
        f"All {samples.count} samples hold the same {names}: each got what the float model had "
        "there, run through them in file order."
    )
    return replace(known, read=read), (note,)


def _is_one_value(samples: Samples, name: str) -> bool:
    first = samples.read(0)[name]
    return all(np.array_equal(first, feeds[name]) for feeds in samples)
