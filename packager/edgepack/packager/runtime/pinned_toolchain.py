"""A profile's toolchain: a Python environment with the packages of the profile's devices.

A variant is made on the build host, and runs with a device's ONNX Runtime, provider and SDK. If an
environment with these packages is named, trial, compilation ahead of time and rehearsal run there:
with the devices' release, and with providers from wheels that no single environment can hold
together.

Answers of such an environment are untrusted (`ask_child`).
"""

import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import msgspec

from edgepack.agent.runtime.child import run_child
from edgepack.decoding import decode_json
from edgepack.errors import BuildError
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.deadline import Deadline
from edgepack.python_child import foreign_python_command
from edgepack.wire.reports import DeviceFacts

_FACTS = "edgepack.agent.runtime.facts"
"""What a device says of itself."""

_TIMEOUT_S = 120.0
"""Of a cold start from a slow disk."""


_T = TypeVar("_T")


class PinnedToolchain(msgspec.Struct, frozen=True, kw_only=True):
    """An environment that answered.

    Attributes:
        python: Path of its interpreter.
        facts: Facts of a device with these packages, and this host's hardware.
    """

    python: str
    facts: DeviceFacts

    def command(self, module: str) -> tuple[str, ...]:
        """Return the command of an edgepack module there, with only packages installed there."""
        return foreign_python_command(self.python, "-m", module)

    @property
    def words(self) -> str:
        """Toolchain in words for people and the report, without machine-specific paths."""
        return f"Python {self.facts.python}, onnxruntime {self.facts.runtime}"


def pin_toolchains(
    named: Mapping[str, str], profiles: Sequence[Profile], deadline: Deadline | None = None
) -> dict[str, PinnedToolchain]:
    """Query the packages of every named environment.

    Args:
        named: Interpreters by the names of profiles.
        profiles: Profiles of the build.
        deadline: Deadline of the answers; None for no end.

    Raises:
        BuildError: A name is not a profile of this build, an interpreter cannot be run, has no
            edgepack or no ONNX Runtime, or has another release of edgepack.
    """
    known = {profile.name for profile in profiles}
    for name in named:
        if name not in known:
            raise BuildError(
                f"a toolchain is named for '{name}', which is not built",
                found_in="--toolchain",
                remedy=f"one of {', '.join(sorted(known))}",
            )
    deadline = deadline or Deadline()
    return {
        name: _ask(name, python, deadline.timeout_s(_TIMEOUT_S)) for name, python in named.items()
    }


def _ask(profile: str, named: str, timeout_s: float) -> PinnedToolchain:
    where = f"--toolchain {profile}={named}"
    python = shutil.which(Path(named).expanduser())
    if python is None:
        raise BuildError(
            f"the toolchain of '{profile}' is not a program that can be run",
            found_in=where,
            remedy="the path of an environment's interpreter, such as device/bin/python",
        )
    ours = version("edgepack")
    install = f"{named} -m pip install 'edgepack[…]=={ours}', with the extra of its provider"
    facts = ask_child(
        foreign_python_command(python, "-m", _FACTS),
        b"",
        DeviceFacts,
        timeout_s=timeout_s,
        failed=f"the toolchain of '{profile}' does not say what it has",
        found_in=where,
        remedy=install,
    )
    if facts.agent_version != ours:
        raise BuildError(
            f"the toolchain of '{profile}' has edgepack {facts.agent_version}, and this is {ours}",
            found_in=where,
            remedy=install,
        )
    return PinnedToolchain(python=python, facts=facts)


def ask_child(
    command: Sequence[str],
    request: bytes,
    kind: type[_T],
    *,
    timeout_s: float,
    failed: str,
    found_in: str,
    remedy: str | None = None,
) -> _T:
    """Start a process, send a request, and read its answer.

    Args:
        command: Command of the process.
        request: JSON for its stdin.
        kind: Type of the answer.
        timeout_s: Limit of the process.
        failed: Meaning of a missing answer, before the reason.
        found_in, remedy: See `BuildError`.

    Raises:
        BuildError: The process gave no answer, or an unreadable answer.
    """
    ending = run_child(command, request, timeout_s=timeout_s)
    if ending.answer is None:
        raise BuildError(f"{failed}: {ending.because}", found_in=found_in, remedy=remedy)
    try:
        return decode_json(ending.answer, kind)
    except msgspec.MsgspecError as error:
        problem = f"{failed}: its answer cannot be read: {error}"
        raise BuildError(problem, found_in=found_in, remedy=remedy) from error
