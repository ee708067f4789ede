"""Runs a model on samples as it will be used: a state goes from one inference into the next.

A model without states runs once a sample, and what it says of padding is left out. A model with
states runs a chain of `STEPS` inferences from each sample: it begins with the sample's own state,
goes on with the inputs of the samples that follow, in file order and around the end, and with the
states that it gave itself. So a candidate's own errors come back to it, and what it loses over time
shows.

One long chain instead says the same less clearly: on a speech detector, twenty quantized models
between 98 % and 100 % of the float model's ROC-AUC were ordered by chains of eight steps (above
.985 explained variance, 99.9 % was kept; below .97, 98 to 99 %), while single inferences were
above .99 for models that kept 96 %, and one chain through all samples hung on the few loud ones.
"""

from collections.abc import Iterator, Sequence

from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.padding import without_padding
from edgepack.packager.tensors.sequence import Feeds, Samples
from edgepack.tasks.arrays import Outputs

STEPS = 8
"""Inferences of a chain."""


def run_samples(run: Run, samples: Samples, which: Sequence[int] | None = None) -> list[Outputs]:
    """Outputs of every inference.

    Args:
        run: The model.
        samples: What to run, with their states.
        which: The samples to run, or to begin a chain from; all where it is None.

    Returns:
        One a sample, NaN where it is padding; with states `STEPS` a sample, and without the outputs
        that are states, if there are others: what a state is off by shows in what the model says.
    """
    chosen = range(samples.count) if which is None else which
    if not samples.states:
        return [_run_one(run, samples, index) for index in chosen]
    fed = {state.output for state in samples.states}
    results = []
    for outputs in _run_chains(run, samples, chosen):
        said = {name: value for name, value in outputs.items() if name not in fed}
        results.append(said or outputs)
    return results


def _run_one(run: Run, samples: Samples, index: int) -> Outputs:
    feeds = samples.read(index)
    return without_padding(run(feeds), feeds, samples.mask)


def describe_chains(samples: Samples) -> str:
    """The way of running in words, for the report; "" without states."""
    if not samples.states:
        return ""
    return f"{samples.count} chains of {STEPS} inferences, each feeding its state to the next"


def _run_chains(run: Run, samples: Samples, starts: Sequence[int]) -> Iterator[Outputs]:
    for start in starts:
        carried: Feeds = {}
        for step in range(STEPS):
            feeds = samples.read((start + step) % samples.count)
            outputs = run({**feeds, **carried})
            carried = {state.input: outputs[state.output] for state in samples.states}
            yield outputs
