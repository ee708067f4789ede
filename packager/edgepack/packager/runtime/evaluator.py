"""Evaluation of a profile's candidates, on the profile's provider if available.

A provider that is missing on the build host, or present only as a simulator (seconds an inference),
is replaced by the CPU provider with graph optimization off: the CPU provider then computes each
Quantize/DequantizeLinear pair unchanged, close to integer hardware, and rounds like 16-bit floats.
"""

from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.agent.runtime.facts import read_device_facts
from edgepack.agent.runtime.opening import ProviderSettings
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import open_on_cpu
from edgepack.packager.profiles.pass_settings import Float16, QuantizeWeights
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.board import Board
from edgepack.packager.runtime.float16_rounding import open_rounding
from edgepack.packager.runtime.model_run import Run, open_on_provider, run_of
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain
from edgepack.packager.runtime.trial import Trial
from edgepack.text import counted
from edgepack.wire.reports import DeviceFacts


class Venue(msgspec.Struct, frozen=True, kw_only=True):
    """Venue that can run a profile's variants on this host.

    Attributes:
        is_native: The provider itself is in this environment, at its real speed.
        is_simulated: Only a simulator of the provider is here, or in the named toolchain.
        because: Why, in the words of the device facts.
        toolchain: The environment of trials; None for this environment.
        version: Release of the provider where variants are tried, or "".
        boards: Boards that prove the profile's variants, in place of this host and the toolchain.
        unproven: Why none of the boards that were named does; "" otherwise.
    """

    is_native: bool
    is_simulated: bool
    because: str
    version: str = ""
    toolchain: PinnedToolchain | None = None
    boards: tuple[Board, ...] = ()
    unproven: str = ""

    @property
    def can_run(self) -> bool:
        """True if a session on the provider can be made at all."""
        is_here = self.is_native or self.is_simulated
        return is_here or self.toolchain is not None or bool(self.boards)


@cache
def read_host_facts() -> DeviceFacts:
    """Return the facts of the build host, read once."""
    return read_device_facts()


def find_venue(
    profile: Profile,
    toolchain: PinnedToolchain | None = None,
    boards: tuple[Board, ...] = (),
) -> Venue:
    """Look whether the profile's provider is on this host, and whether this host is its device.

    Args:
        profile: The profile.
        toolchain: The profile's named environment, if any.
        boards: Boards that run the profile's variants: then this host is not the device.

    Raises:
        BuildError: The provider cannot run in that environment.
    """
    here = _look(profile, read_host_facts())
    if boards:
        because = "it runs on a board"
        return Venue(
            is_native=False,
            is_simulated=False,
            because=because,
            toolchain=toolchain,
            boards=boards,
        )
    if toolchain is None:
        return here
    there = _look(profile, toolchain.facts)
    if not there.can_run:
        raise BuildError(
            f"the toolchain named for '{profile.name}' cannot run it: {there.because}",
            found_in=toolchain.words,
            remedy="an environment with the provider, on a machine that it runs on; without one, "
            "the variant is built and not tried",
        )
    return replace(
        here, is_simulated=there.is_simulated, version=there.version, toolchain=toolchain
    )


def _look(profile: Profile, facts: DeviceFacts) -> Venue:
    device = profile.device
    for provider in facts.providers:
        if provider.name == device.provider:
            there = provider.available and device.type in (provider.devices or (device.type,))
            has_features = set(device.cpu_features) <= set(facts.cpu_features)
            fits = has_features and (not device.arch or facts.arch in device.arch)
            return Venue(
                is_native=there and fits and not provider.is_simulator,
                is_simulated=there and provider.is_simulator,
                because=provider.because if fits else _describe_misfit(profile, facts),
                version=provider.version,
            )
    return Venue(
        is_native=False,
        is_simulated=False,
        because=f"{device.provider} is not known on this host",
    )


def _describe_misfit(profile: Profile, facts: DeviceFacts) -> str:
    wanted = " ".join((*profile.device.arch, *profile.device.cpu_features))
    return f"this host is {facts.arch} {facts.cpu_model} without {wanted}"


def profile_settings(profile: Profile) -> ProviderSettings:
    """Return the settings of a profile's sessions."""
    return ProviderSettings(
        provider=profile.device.provider,
        device=profile.device.type,
        provider_options=profile.provider.options,
        session_options=profile.provider.session,
    )


class Evaluator(msgspec.Struct, frozen=True):
    """Opens candidates at the place of measurement.

    Attributes:
        profile: The profile.
        venue: Place of runs on this host.
    """

    profile: Profile
    venue: Venue

    @property
    def provider(self) -> str:
        """The provider that candidates run on: the profile's own if present."""
        return self.profile.device.provider if self.venue.is_native else CPU_PROVIDER

    @property
    def raced_on(self) -> str:
        """The provider of races in words, with its place."""
        if self.venue.boards:
            return f"the board's {self.profile.device.provider}"
        return f"this host's {self.provider}"

    @property
    def is_on_cpu(self) -> bool:
        """True if the CPU provider is the profile's own, and not a stand-in."""
        return self.venue.is_native and self.provider == CPU_PROVIDER

    def open(self, path: Path, *, threads: int = 0) -> Run:
        """Open a candidate.

        Args:
            path: The model.
            threads: Intra-op threads; 0 leaves the number to ONNX Runtime.

        Returns:
            A function that runs an inference.

        Raises:
            BuildError: ONNX Runtime refuses the model.
        """
        if not self.venue.is_native:
            if isinstance(self.profile.lowering, Float16):
                return open_rounding(path)
            return open_plain(path, are_packed=isinstance(self.profile.lowering, QuantizeWeights))
        return open_on_provider(path, profile_settings(self.profile), threads=threads)


def open_plain(path: Path, *, are_packed: bool = False) -> Run:
    """Open a model on the CPU provider with nothing fused.

    Args:
        path: The model.
        are_packed: Whether products read packed weights. ONNX Runtime 1.31.1 then computes zeros
            with scales of 16 bits, unless it may fold their Cast while it loads the model.
    """
    return run_of(open_on_cpu(path, optimize=are_packed))


def describe_venue(evaluator: Evaluator, profile: Profile, trial: Trial | None) -> tuple[str, ...]:
    """State the places of a variant's evaluation and runs, and why no board proved it if so.

    Args:
        evaluator, profile, trial: See `_describe_places`.
    """
    unproven = evaluator.venue.unproven
    more = (f"No board that was named proved it ({unproven}).",) if unproven else ()
    return (*_describe_places(evaluator, profile, trial), *more)


def _describe_places(
    evaluator: Evaluator, profile: Profile, trial: Trial | None
) -> tuple[str, ...]:
    """State the places of a variant's evaluation and runs, and the providers that could not run.

    Args:
        evaluator: Where candidates were measured.
        profile: The profile.
        trial: The variant's run on its provider; None where that cannot run here.
    """
    if trial is None:
        return (
            f"Not run on {profile.device.provider} here ({evaluator.venue.because}): accuracy "
            "is measured on the CPU provider, placement is not known." + _toolchain_hint(profile),
        )
    venue, count = evaluator.venue, len(trial.outputs)
    if venue.boards:
        boards = "; ".join(board.words for board in venue.boards)
        return (f"Proven on a board: accuracy, placement and times are from {boards}.",)
    there = f" of its toolchain ({venue.toolchain.words})" if venue.toolchain else ""
    if venue.is_simulated:
        ran = f"the simulator of {profile.device.provider}{there}"
    elif venue.toolchain:
        ran = f"{profile.device.provider}{there}"
    else:
        return ()
    return (
        f"Accuracy is measured on {evaluator.provider}; {counted(count, 'sample')} ran on {ran} "
        "too.",
    )


def _toolchain_hint(profile: Profile) -> str:
    """Return a hint for a host without the provider's package, if the hardware is present."""
    facts = read_host_facts()
    is_here = any(it.name == profile.device.provider and it.available for it in facts.providers)
    if is_here or profile.device.type != "cpu":
        return ""
    return f" --toolchain {profile.name}=PYTHON names an environment that has it."
