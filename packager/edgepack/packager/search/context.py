"""Context of a measurement: a result is recalled only in an equal context."""

import contextlib
import hashlib
import inspect
import linecache

import msgspec

from edgepack.packager.gates.user_metric import Metric, metric_name
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.evaluator import read_host_facts
from edgepack.packager.runtime.tool_versions import tool_versions
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tensors.sequence import SampleSplit

_FORMAT = 16
"""Raised when the same measurement would give other numbers."""


def describe_context(
    source: SourceModel, split: SampleSplit, profile: Profile, metric: Metric | None
) -> str:
    """Return digest of all that a measurement depends on.

    A metric counts by its name and its source file, not by its data.
    """
    facts = read_host_facts()
    parts = (
        _FORMAT,
        source.sha256,
        [str(spec) for spec in source.inputs],
        *([[str(entry) for entry in source.fixed]] if source.fixed else []),
        split.sha256,
        [str(state) for state in split.search.states],
        str(split.search.mask),
        *([split.search.steps] if split.search.steps else []),
        msgspec.to_builtins(split.search.description),
        profile.sha256,
        tool_versions(),
        (facts.arch, facts.cpu_model, sorted(facts.cpu_features)),
        _describe_metric(metric),
        *([str(split.search.decoder)] if split.search.decoder else []),
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _describe_metric(metric: Metric | None) -> str:
    if metric is None:
        return ""
    file = _source_file(metric)
    text = "".join(linecache.getlines(file)) if file else ""  # a notebook's cell is not a file
    code = hashlib.sha256(text.encode()).hexdigest() if text else ""
    return f"{metric_name(metric)} {code}"


def _source_file(metric: Metric) -> str | None:
    """Return the source file of a function, or of a callable object's class."""
    for written in (metric, type(metric)):
        with contextlib.suppress(TypeError):  # it has no source: it is built in
            return inspect.getsourcefile(written)
    return None
