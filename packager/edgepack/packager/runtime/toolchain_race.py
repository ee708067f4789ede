"""Models timed in the environment that a profile's devices have.

python -m edgepack.packager.runtime.toolchain_race    (request on stdin, answer on stdout, JSON)
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgepack.agent.runtime.child import keep_stdout_clean, take_request
from edgepack.agent.runtime.opening import ProviderSettings, open_model_file
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.decoding import decode_json
from edgepack.errors import BuildError, DeviceError
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.child_answer import ask_child
from edgepack.packager.runtime.evaluator import profile_settings
from edgepack.packager.runtime.model_run import run_of_provider
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain
from edgepack.packager.runtime.timing import Turns, has_thread_clock, take_turns
from edgepack.packager.tensors.exchange import read_tensors, write_tensors
from edgepack.packager.tensors.sequence import Feeds

_MODULE = "edgepack.packager.runtime.toolchain_race"
TIMEOUT_S = 600.0


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
    """The times of the turns; or why there are none."""

    times_s: tuple[tuple[float, ...], ...] = ()
    problem: str = ""
    remedy: str = ""


def race_elsewhere(
    models: Sequence[Path],
    feeds: Sequence[Feeds],
    profile: Profile,
    toolchain: PinnedToolchain,
    *,
    rounds: int,
    timeout_s: float = TIMEOUT_S,
) -> Turns:
    """Time models on a single thread, in turns, by a profile's provider in its toolchain.

    Args:
        models: Their files.
        feeds: Inputs by name, at least 1.
        profile: Names provider and options.
        toolchain: The environment.
        rounds: See `take_turns`.
        timeout_s: Time limit, seconds.

    Raises:
        BuildError: The provider refuses a model, fails, crashes or hangs.
    """
    where = f"{profile.device.provider} of its toolchain, {toolchain.words}"
    with tempfile.NamedTemporaryFile(dir=models[0].parent, suffix=".npz") as file:
        write_tensors(Path(file.name), [dict(each) for each in feeds])
        request = RaceRequest(
            models=tuple(str(path) for path in models),
            feeds=file.name,
            feed_count=len(feeds),
            settings=profile_settings(profile),
            rounds=rounds,
            timeout_s=timeout_s,
        )
        answer = ask_child(
            toolchain.command(_MODULE),
            msgspec.json.encode(request),
            RaceAnswer,
            timeout_s=timeout_s,
            failed=f"the model does not survive {profile.device.provider}",
            found_in=where,
            remedy="another profile for this device, or a report to the provider's vendor",
        )
    if answer.problem:
        raise BuildError(answer.problem, found_in=where, remedy=answer.remedy or None)
    return Turns(times_s=answer.times_s)


def main() -> None:
    """Time models. For the child."""
    request = decode_json(take_request(), RaceRequest)
    answers = keep_stdout_clean(request.timeout_s)
    answers.write(msgspec.json.encode(_time(request)) + b"\n")
    answers.flush()


def _time(request: RaceRequest) -> RaceAnswer:
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


if __name__ == "__main__":
    main()
