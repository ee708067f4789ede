"""Request to a child process, with an untrusted answer."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from edgepack.agent.runtime.child import run_child
from edgepack.decoding import decode_json
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
