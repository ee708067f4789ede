"""Question to a child process, whose answer is untrusted."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from edgepack.agent.runtime.child import run_child
from edgepack.errors import BuildError

_T = TypeVar("_T")


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
    """Start a process, ask it, and read its answer.

    Args:
        command: Starts it.
        request: JSON for its stdin.
        kind: What its answer is.
        timeout_s: It is ended then.
        failed: What it means that there is no answer, before the reason.
        found_in, remedy: See `BuildError`.

    Raises:
        BuildError: It gave no answer, or none that can be read.
    """
    ending = run_child(command, request, timeout_s=timeout_s)
    if ending.answer is None:
        raise BuildError(f"{failed}: {ending.because}", found_in=found_in, remedy=remedy)
    try:
        return msgspec.json.decode(ending.answer, type=kind)
    except msgspec.MsgspecError as error:
        problem = f"{failed}: its answer cannot be read: {error}"
        raise BuildError(problem, found_in=found_in, remedy=remedy) from error
