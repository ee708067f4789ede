"""Times models against each other in another environment or on a board; see `trial`.

This module uses only packages of a device.
"""

import time
from pathlib import Path

import msgspec

from edgepack.agent.runtime.opening import ProviderSettings, open_model_file
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.errors import DeviceError
from edgepack.packager.runtime.provider_session import run_of_provider
from edgepack.packager.runtime.timing import has_thread_clock, take_turns
from edgepack.packager.tensors.exchange import read_tensors


class RaceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to time models.

    Attributes:
        models: Their paths.
        feeds: Path of the inputs, see `write_tensors`.
        feed_count: How many.
        settings: Settings of the sessions.
        rounds: Inferences of each at the most.
        timeout_s: The parent's limit, seconds.
    """

    models: tuple[str, ...]
    feeds: str
    feed_count: int
    settings: ProviderSettings
    rounds: int
    timeout_s: float


class RaceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The times of the turns, seconds, a row for each model; or the reason for no times."""

    times_s: tuple[tuple[float, ...], ...] = ()
    problem: str = ""
    remedy: str = ""


def race_here(request: RaceRequest) -> RaceAnswer:
    """Time models on a single thread each, in turns."""
    try:
        sessions = [
            open_model_file(Path(model), request.settings, threads=1) for model in request.models
        ]
        feeds = read_tensors(Path(request.feeds), request.feed_count)
        computes_here = request.settings.provider == CPU_PROVIDER and has_thread_clock()
        turns = take_turns(
            [run_of_provider(session) for session in sessions],
            feeds,
            rounds=request.rounds,
            clock=time.thread_time if computes_here else None,
        )
    except DeviceError as error:
        return RaceAnswer(problem=error.problem, remedy=error.remedy or "")
    return RaceAnswer(times_s=turns.times_s)
