"""Both forms of a model in a single bundle: each device takes the faster form.

The faster form depends on the CPU: 8-bit products are fast with VNNI, and without VNNI the float
model is often faster. The build host knows of itself alone.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.profiles.pass_settings import Lowering
from edgepack.packager.profiles.reading import with_digest
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.search.combinations import Combination

_SUFFIX = "-float"


def with_float_forms(
    combinations: Sequence[tuple[Combination, ...]],
) -> tuple[tuple[Combination, ...], ...]:
    """Add the float form behind each profile if devices are to choose.

    Args:
        combinations: Of each profile.
    """
    named = {entries[0].profile.name for entries in combinations}
    return tuple(
        form
        for entries in combinations
        for form in (entries, *_float_form(entries[0].profile))
        if form is entries or form[0].profile.name not in named
    )


def profile_of_form(name: str) -> str:
    """Return the name of the profile that a form is of."""
    return name.removesuffix(_SUFFIX)


def is_there_already(profile: Profile, variants: Sequence[PreparedVariant]) -> bool:
    """Return True if a profile is a float form, and the float model was published in the other's
    place.
    """
    return any(
        variant.float_because and profile.name == f"{variant.profile}{_SUFFIX}"
        for variant in variants
    )


def _float_form(profile: Profile) -> tuple[tuple[Combination, ...], ...]:
    gates = profile.gates
    if gates.prefer != "device" or profile.lowering is None or "slower" not in gates.float_instead:
        return ()
    about = replace(
        profile.about,
        name=f"{profile.name}{_SUFFIX}",
        summary=f"The float form of {profile.name}",
        precision="fp32",
    )
    passes = tuple(entry for entry in profile.passes if not isinstance(entry, Lowering))
    form = replace(
        profile, about=about, passes=passes, gates=replace(gates, float_instead=(), prefer="speed")
    )
    return ((Combination(words="", profile=with_digest(form)),),)
