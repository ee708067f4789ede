"""Variants that a pipeline is built for: a profile for each stage."""

from collections.abc import Sequence

import msgspec

from edgepack.errors import BuildError
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.stages.pipeline_file import PipelineSource


class VariantPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a variant.

    Attributes:
        name: Name of the variant.
        profiles: By stage the profile, name or path.
        keep: Least share of the float pipeline's result.
    """

    name: str
    profiles: dict[str, str]
    keep: float


def budget_of(source: PipelineSource, profile: str) -> float:
    """Return the least share of the float pipeline's result: the profile's for the pipeline's task,
    else the pipeline's.
    """
    own = resolve_profile(profile, {}).gates.accuracy.get(source.part.task)
    return source.keep if own is None else own.keep


def plan_variants(source: PipelineSource, profiles: Sequence[str]) -> tuple[VariantPlan, ...]:
    """Return the variants of the pipeline's file, then one for each profile of the request.

    Args:
        source: The pipeline.
        profiles: Profiles that are used for all stages.

    Raises:
        BuildError: There is no variant, a name is there twice, or a variant names an unknown stage.
        ProfileError: A profile does not exist.
    """
    stages = [stage.name for stage in source.stages]
    plans = []
    for section in source.variants:
        for stage in section.stages:
            if stage not in stages:
                raise BuildError(
                    f"variant '{section.name}' names the stage '{stage}', which does not exist",
                    found_in=f"{source.path}, [[variant]] {section.name}",
                    remedy=f"the {len(stages)} stages are {', '.join(stages)}",
                )
        chosen = {stage: section.stages.get(stage, section.others) for stage in stages}
        found = {
            stage: str(source.path.parent / profile) if profile.endswith(".toml") else profile
            for stage, profile in chosen.items()
        }
        plans.append(VariantPlan(name=section.name, profiles=found, keep=source.keep))
    for profile in profiles:
        name = resolve_profile(profile, {}).name
        profiles_of_stages = dict.fromkeys(stages, profile)
        keep = budget_of(source, profile)
        plans.append(VariantPlan(name=name, profiles=profiles_of_stages, keep=keep))
    names = [plan.name for plan in plans]
    if not names:
        raise BuildError(
            "no profile was named: for which hardware is the bundle?",
            found_in=str(source.path),
            remedy="--profile cpu, or [[variant]] with a profile for each stage",
        )
    if len(set(names)) < len(names):
        raise BuildError(
            f"two of the {len(names)} variants have one name: {', '.join(sorted(names))}",
            found_in=str(source.path),
            remedy="give each [[variant]] a name that is no profile of --profile",
        )
    for plan in plans:
        for profile in plan.profiles.values():
            resolve_profile(profile, {})
    return tuple(plans)
