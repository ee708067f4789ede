"""A variant of a model, prepared from samples that are divided already."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.pipeline.prepare_variant import prepare_variant
from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.pipeline.selection import EvaluationInputs, VariantPlan
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.board import Board
from edgepack.packager.runtime.evaluator import find_venue
from edgepack.packager.runtime.plain_runtime import PlainRelease
from edgepack.packager.search.combinations import Combination
from edgepack.packager.source.model import SourceModel, load_source
from edgepack.packager.source.reference import FloatSource
from edgepack.packager.tensors.sequence import SampleSplit


def prepare(
    model: Path | SourceModel,
    profile: Profile,
    split: SampleSplit,
    folder: Path,
    *,
    allow_degraded: bool = False,
    plain_releases: tuple[PlainRelease, ...] = (),
    resources: Resources | None = None,
    boards: tuple[Board, ...] = (),
    **judged_by: Any,
) -> PreparedVariant:
    """What `prepare_variant` makes of a file; held-out samples are tried on its provider.

    Args:
        model: The model, or its file.
        profile: The profile.
        split: Samples.
        folder: For everything that is written.
        allow_degraded, plain_releases: See `VariantPlan`.
        resources: None for no limit, no journal and no process.
        boards: Boards that prove the variant.
        judged_by: A metric or labels, see `EvaluationInputs`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = load_source(model) if isinstance(model, Path) else model
    inputs = EvaluationInputs(
        source=source,
        split=replace(split, golden=tuple(range(min(split.held_out.count, 8)))),
        provider_samples=split.held_out,
        float_source=FloatSource(source, folder / "float-source.onnx"),
        **judged_by,
    )
    plan = VariantPlan(
        combinations=(Combination(words="", profile=profile),),
        venue=find_venue(profile, boards=boards),
        plain_releases=plain_releases,
        allow_degraded=allow_degraded,
    )
    return prepare_variant(inputs, plan, resources or Resources(), folder)
