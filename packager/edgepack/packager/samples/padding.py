"""Detection of padding rows: a mask input marks the rows, and the model obeys the mask.

A sentence that is shorter than the model's fixed length is filled up, and a mask tells the model
which tokens count. Nobody reads the model's outputs at padding, which are noisier: a verdict on all
rows would spend float nodes on padding. The model, not its names, decides whether an input is a
mask: inputs at places with mask 0 must not change a row with mask 1.
"""

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.reference import open_as_given
from edgepack.packager.tensors.sequence import Feeds, Mask, Samples
from edgepack.tasks.arrays import Bools, Outputs, Tensor

_UNMOVED = 1e-4
"""Root-mean-square change, as a share of the rows' own, that rounding may leave."""


def follow_mask(opened: OpenedSamples, source: SourceModel) -> OpenedSamples:
    """Find out which input tells padding, and which outputs have a row for each of its places.

    Args:
        opened: The samples.
        source: The model of the samples.

    Returns:
        The samples with their mask, and a note; unchanged without padding.
    """
    shares = _shares_of_padding(opened.samples)
    if not shares:
        return opened
    run = open_as_given(source)
    for name, share in shares.items():
        mask = find_mask(name, opened.samples, run)
        if mask is not None:
            note = (
                f"Input '{name}' tells padding, {share:.0%} of the samples' rows: verdicts leave "
                f"these rows of {', '.join(map(repr, mask.outputs))} out."
            )
            samples = replace(opened.samples, mask=mask)
            return replace(opened, samples=samples, notes=(*opened.notes, note))
    return opened


def find_mask(name: str, samples: Samples, run: Run) -> Mask | None:
    """Return a mask, if the model ignores the hidden places of an input.

    Args:
        name: The input; its values are 0 and 1.
        samples: At least a single sample has both values.
        run: The float model.

    Returns:
        The mask; None if hidden places affect other rows, or no output has a row for each place.
    """
    feeds = next(feeds for feeds in samples if _hides_some(feeds[name]))
    used = np.asarray(feeds[name] != 0)
    other = _with_padding_changed(feeds, name, used)
    before, after = run(feeds), run(other)
    outputs = tuple(
        output
        for output, value in before.items()
        if value.dtype.kind == "f" and value.ndim > used.ndim and value.shape[:2] == used.shape
    )
    is_obeyed = all(
        _moved(before[output][used], after[output][used]) < _UNMOVED for output in outputs
    )
    return Mask(input=name, outputs=outputs) if outputs and is_obeyed else None


def without_padding(outputs: Outputs, feeds: Feeds, mask: Mask | None) -> Outputs:
    """Return the same outputs, with NaN in the rows that are padding: these are not compared.

    Args:
        outputs: Outputs of an inference.
        feeds: Inputs of the inference.
        mask: Mask of padding; None without padding.
    """
    if mask is None:
        return outputs
    hidden = np.asarray(feeds[mask.input] == 0)
    return {
        name: _blanked(value, hidden) if name in mask.outputs else value
        for name, value in outputs.items()
    }


def _blanked(value: Tensor, hidden: Bools) -> Tensor:
    if value.shape[:2] != hidden.shape:
        return value  # a candidate's shape is wrong: whoever compares it says so
    blanked = value.copy()
    blanked[hidden] = np.nan
    return blanked


def _shares_of_padding(samples: Samples) -> Mapping[str, float]:
    """Return share of zeros by input, of the inputs [batch, rows] that are nothing but 0 and 1."""
    first = samples.read(0)
    zeros = {
        name: 0
        for name, value in first.items()
        if value.ndim == 2 and value.shape[1] > 1 and _has_company(name, first)
    }
    counts = dict.fromkeys(zeros, 0)
    has_both: set[str] = set()
    for feeds in samples:
        for name in tuple(zeros):
            value = feeds[name]
            if not np.isin(value, (0, 1)).all():
                del zeros[name]
                continue
            zeros[name] += int((value == 0).sum())
            counts[name] += value.size
            if _hides_some(value):
                has_both.add(name)
        if not zeros:
            break
    return {name: zeros[name] / counts[name] for name in zeros if name in has_both}


def _has_company(name: str, feeds: Feeds) -> bool:
    """Return True if another input has as many places, which the mask could be of."""
    return any(
        value.shape[:2] == feeds[name].shape for other, value in feeds.items() if other != name
    )


def _hides_some(value: Tensor) -> bool:
    return bool((value == 0).any() and (value != 0).any())


def _with_padding_changed(feeds: Feeds, name: str, used: Bools) -> Feeds:
    """Return the same sample, with values of used places at the padding."""
    changed = {}
    for other, value in feeds.items():
        if other == name or value.shape[:2] != used.shape:
            continue
        known = value[used]
        changed[other] = value.copy()
        changed[other][~used] = np.resize(known[::-1], (int((~used).sum()), *known.shape[1:]))
    return {**feeds, **changed}


def _moved(before: Tensor, after: Tensor) -> float:
    a, b = before.astype(np.float64), after.astype(np.float64)
    return float(np.sqrt(np.mean((b - a) ** 2)) / max(np.sqrt(np.mean(a**2)), 1e-12))
