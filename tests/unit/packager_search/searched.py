"""A model whose answer 8 bits do not hold, prepared in one or several combinations of settings."""

from pathlib import Path
from typing import Any

import onnx
from msgspec.structs import replace

from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.pipeline.selection import EvaluationInputs, SearchedCombination, VariantPlan
from edgepack.packager.pipeline.settings_search import SettingsSearch
from edgepack.packager.runtime.evaluator import find_venue
from edgepack.packager.search.combinations import Combination
from edgepack.packager.search.journal import Journal
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.packager.source.model import load_source
from edgepack.packager.source.reference import open_reference
from edgepack.packager.tensors.sequence import SampleSplit
from edgepack.tasks.description import NOTHING_KNOWN, ModelDescription
from tests.unit.packager_passes.models import samples_for, spread_model


def search_spread(
    folder: Path, combinations: tuple[Combination, ...], **more: Any
) -> SearchedCombination:
    """What the search keeps of `spread_model`; see `spread_search`."""
    return spread_search(folder, combinations, **more).run()


def spread_search(
    folder: Path,
    combinations: tuple[Combination, ...],
    *,
    journal: Journal | None = None,
    limit: TimeLimit | None = None,
    spread: float = 300.0,
    sample_count: int = 45,
    description: ModelDescription = NOTHING_KNOWN,
) -> SettingsSearch:
    """The search for `spread_model`, before it ran.

    Args:
        folder: Where everything is written; it must not exist.
        combinations: What is tried, at least one.
        journal, limit: None for none.
        spread: See `spread_model`.
        sample_count: A third of them for each purpose.
        description: What the model's outputs mean.
    """
    folder.mkdir()
    model = spread_model(spread)
    onnx.save(model, folder / "model.onnx")
    source = load_source(folder / "model.onnx")
    samples = replace(samples_for(model, sample_count), description=description)
    third = sample_count // 3
    split = SampleSplit(
        calibration=samples.pick(range(third)),
        search=samples.pick(range(third, 2 * third)),
        held_out=samples.pick(range(2 * third, sample_count)),
    )
    inputs = EvaluationInputs(
        source=source,
        split=split,
        provider_samples=split.held_out,
        float_source=open_reference(source, folder / "reference.onnx"),
    )
    plan = VariantPlan(combinations=combinations, venue=find_venue(combinations[0].profile))
    resources = Resources(limit=limit or TimeLimit(None), journal=journal or Journal(None))
    return SettingsSearch(inputs, plan, resources, folder / "work")
