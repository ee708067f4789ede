"""Step 1 of a build: checks before the model is opened.

A bundle has both forms of a model for a CPU (`with_float_forms`), and each device takes the faster
form. The faster form depends on the CPU: 8-bit products are fast with VNNI, and without VNNI the
float model is often faster. The build host knows of itself alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from edgepack.bundle.keys import PublicKey
from edgepack.bundle.recipients import load_recipients
from edgepack.bundle.signing_keys import SigningKey, load_signing_key
from edgepack.errors import BuildError, ProfileError
from edgepack.packager.boards.reach import Boards
from edgepack.packager.bundling.deltas import check_older
from edgepack.packager.bundling.output import check_output
from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.bundling.shipped_firmware import check_firmware, check_shipped_hooks
from edgepack.packager.config.trusted_code import find_in_profiles, require_trust
from edgepack.packager.pipeline.board_validation import match_boards
from edgepack.packager.pipeline.fleet_feedback import Learnt, learn
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.profiles.pass_settings import Lowering
from edgepack.packager.profiles.reading import with_digest
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.board import Board
from edgepack.packager.runtime.deadline import Deadline
from edgepack.packager.runtime.evaluator import Venue, find_venue
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain, pin_toolchains
from edgepack.packager.runtime.plain_runtime import PlainRelease, find_releases
from edgepack.packager.search.combinations import Combination, combine

_SUFFIX = "-float"


class CheckedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request after parsing and checks.

    Attributes:
        key: The key that signs.
        recipients: Recipients of an encrypted bundle; none without encryption.
        combinations: For each profile the combinations to search, at least 1.
        learnt: Feedback of a fleet about the requested profiles.
        toolchains: By profile the named environment with its devices' packages, if any.
        venues: By profile the place of runs on this host, or its boards.
        plain_releases: Where variants run in ONNX Runtime by itself.
        deadline: The end of the build.
    """

    key: SigningKey
    recipients: tuple[PublicKey, ...]
    combinations: tuple[tuple[Combination, ...], ...]
    learnt: Learnt
    toolchains: Mapping[str, PinnedToolchain]
    venues: Mapping[str, Venue]
    plain_releases: tuple[PlainRelease, ...]
    deadline: Deadline

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Each profile with the settings that are tried first."""
        return tuple(entries[0].profile for entries in self.combinations)

    @property
    def boards(self) -> dict[str, tuple[Board, ...]]:
        """By profile the boards that prove its variant."""
        return {name: venue.boards for name, venue in self.venues.items() if venue.boards}


def check_request(
    request: BuildRequest, boards: Boards, clock: Callable[[], float] = time.monotonic
) -> CheckedRequest:
    """Read key, profiles, toolchains and hooks, and reject an impossible request.

    Args:
        request: Request for the build.
        boards: Reaches the boards that the request names.
        clock: Returns seconds, which `budget_s` bounds.

    Raises:
        EdgepackError: The first thing that keeps a bundle from being made.
        OutOfTimeError: The time of the build is used up.
    """
    deadline = Deadline(request.budget_s, clock)
    check_output(request.output, replace=request.replace)
    key = load_signing_key(request.key)
    recipients = tuple(key for path in request.encrypt_to for key in load_recipients(path))
    check_older(request.delta_from, request.name, is_encrypted=bool(recipients))
    asked = _load_combinations(request)
    every = (entry.profile for entries in asked for entry in entries)
    searched = {entry.key: entry.file for entry in request.searched if entry.file}
    require_trust(find_in_profiles(every, searched), request.trust_config)
    learnt = learn(request.feedback, request.name, [entries[0].profile for entries in asked])
    combinations = with_float_forms(_chosen(asked, learnt))
    profiles = [entries[0].profile for entries in combinations]
    pinned = pin_toolchains(request.toolchains, tuple(profiles), deadline)
    toolchains = {
        profile.name: pinned[name]
        for profile in profiles
        for name in (profile.name, profile_of_form(profile.name))
        if name in pinned
    }
    if request.hooks is not None:
        check_shipped_hooks(request.hooks)
    check_firmware(request.firmware)
    proving = match_boards(boards.reach(request.prove, request.prove_wheels), profiles)
    venues = {
        profile.name: replace(
            find_venue(profile, toolchains.get(profile.name), proving[profile.name].boards),
            unproven=proving[profile.name].unproven,
        )
        for profile in profiles
    }
    return CheckedRequest(
        key=key,
        recipients=recipients,
        combinations=combinations,
        learnt=learnt,
        toolchains=toolchains,
        venues=venues,
        plain_releases=find_releases(request.plain_runtimes, deadline),
        deadline=deadline,
    )


def _load_combinations(
    request: BuildRequest,
) -> tuple[tuple[Combination, ...], ...]:
    """Return each profile in every combination that is searched, all checked."""
    if not request.profiles:
        raise BuildError(
            "no profile was named: for which hardware is the bundle?",
            remedy="--profile cpu  (edgepack profiles list shows all)",
        )
    combinations: dict[str, tuple[Combination, ...]] = {}
    changes = {"gates": {"prefer": request.prefer}} if request.prefer else {}
    for entries in combine(request.profiles, request.searched, changes):
        name = entries[0].profile.name
        if name in combinations:
            raise ProfileError(f"profile {name!r} is named twice", remedy="name each profile once")
        combinations[name] = entries
    return tuple(combinations.values())


def _chosen(
    asked: Sequence[tuple[Combination, ...]], learnt: Learnt
) -> tuple[tuple[Combination, ...], ...]:
    """Return the combinations to build: frequent devices first, without excluded combinations."""
    kept = (entries for entries in asked if entries[0].profile.name not in learnt.left_out)
    return tuple(
        sorted(kept, key=lambda entries: -learnt.serves_on.get(entries[0].profile.name, 0))
    )


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
