"""Models timed in the environment that a profile's devices have, or on a board."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from edgepack.decoding import decode_json
from edgepack.errors import BuildError
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.board import Board
from edgepack.packager.runtime.evaluator import profile_settings
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain
from edgepack.packager.runtime.provider_process import MODULE, ProviderProcess, TrialProcess
from edgepack.packager.runtime.race_child import RaceAnswer, RaceRequest
from edgepack.packager.runtime.timing import Turns
from edgepack.packager.runtime.trial import Asked
from edgepack.packager.tensors.exchange import write_tensors
from edgepack.packager.tensors.sequence import Feeds

TIMEOUT_S = 600.0
_RACES = "races"


def race_elsewhere(
    models: Sequence[Path],
    feeds: Sequence[Feeds],
    profile: Profile,
    place: PinnedToolchain | Board,
    *,
    rounds: int,
    timeout_s: float = TIMEOUT_S,
) -> Turns:
    """Time models on a single thread, in turns, by a profile's provider elsewhere.

    Args:
        models: Their files.
        feeds: Inputs by name, at least 1.
        profile: Names provider and options.
        place: The environment, or the board.
        rounds: See `take_turns`.
        timeout_s: Time limit, seconds.

    Raises:
        BuildError: The provider refuses a model, fails, crashes or hangs.
        BoardLostError: The board does not answer any longer.
    """
    where = f"{profile.device.provider} of {_owner(place)}, {place.words}"
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
        with _process(place) as process:
            ending = process.ask(msgspec.json.encode(Asked(race=request)), timeout_s=timeout_s)
    remedy = "another profile for this device, or a report to the provider's vendor"
    failed = f"the model does not survive {profile.device.provider}"
    if ending.answer is None:
        raise BuildError(f"{failed}: {ending.because}", found_in=where, remedy=remedy)
    try:
        answer = decode_json(ending.answer, RaceAnswer)
    except msgspec.MsgspecError as error:
        problem = f"{failed}: its answer cannot be read: {error}"
        raise BuildError(problem, found_in=where, remedy=remedy) from error
    if answer.problem:
        raise BuildError(answer.problem, found_in=where, remedy=answer.remedy or None)
    return Turns(times_s=answer.times_s)


@contextmanager
def _process(place: PinnedToolchain | Board) -> Iterator[TrialProcess]:
    """Yield a fresh process in an environment, or the process of races on a board: a slow board
    loads ONNX Runtime once.
    """
    if isinstance(place, Board):
        if place.process.subject != _RACES:
            place.process.start_anew(_RACES)
        yield place.process
        return
    with ProviderProcess() as process:
        process.start_anew(_RACES, command=place.command(MODULE))
        yield process


def _owner(place: PinnedToolchain | Board) -> str:
    return f"board {place.name}" if isinstance(place, Board) else "its toolchain"
