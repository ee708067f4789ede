"""Successive devices, each with a disk that fails from another call of its update on.

Runs with a faulty disk preloaded; prints the result as JSON. The update is that of
`tests.simulators.world`: real files, keys and bundles, and no network.
"""

import contextlib
import json
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgepack.agent.state.pointer import read_pointer
from edgepack.bundle.keys import load_public_key
from edgepack.bundle.slot import verify_slot
from edgepack.errors import EdgepackError
from tests.simulators.bundles import ExampleBundle, describe_bundle
from tests.simulators.faulty_disk import FOREVER, FaultyDisk
from tests.simulators.world import World

TURNS = 12
"""Turns of the agent's loop while the disk fails, before and after its restart."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a trial.

    Attributes:
        control: Of the faulty disk.
        template: State folder of a device that serves the first bundle.
        folder: Parent folder of the devices' folders, on the faulty disk.
        key: PEM file of the public key.
        bundles: The first bundle and the next.
        error: The errno.
        is_lasting: Whether every later call fails; otherwise a single call fails.
        step: Distance between tried calls.
        offset: The first tried call.
    """

    control: str
    template: str
    folder: str
    key: str
    bundles: tuple[str, str]
    error: int
    is_lasting: bool
    step: int
    offset: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trial.

    Attributes:
        calls: Calls of an undisturbed update.
        tried: Number of tried devices, and number of devices with a failed call.
        hit: See `tried`.
        silent: Failed calls without a report of the device while the disk failed.
        problems: Problems by number of the call.
    """

    calls: int
    tried: int
    hit: int
    silent: tuple[int, ...]
    problems: dict[int, str]


def _device(request: Request, number: int, bundles: list[ExampleBundle]) -> World:
    folder = Path(request.folder) / f"device-{number}"
    shutil.copytree(request.template, folder)
    return _hold(World(state_dir=folder, keys=(load_public_key(Path(request.key)),)), bundles)


def _hold(world: World, bundles: list[ExampleBundle]) -> World:
    for bundle in bundles:
        world.link.hold(bundle)
    return world


def _turn(world: World) -> None:
    wait_s = world.models.advance()
    if not world.link.deliver(world.models):
        world.now += 0.5 if wait_s is None else max(wait_s, 0.001)


def _offer(world: World, bundle: ExampleBundle) -> None:
    with contextlib.suppress(OSError):  # As the agent does: the controller says it again.
        world.models.take(bundle.desired(2, soak_s=1))


def _has_heard(world: World) -> bool:
    with contextlib.suppress(OSError):
        return world.has_heard(2)
    return False


def _check_serving(world: World, bundles: list[ExampleBundle]) -> None:
    pointer = read_pointer(world.state_dir, "tiny")
    assert pointer is not None, "nothing serves"
    assert pointer.bundle in {bundle.ref for bundle in bundles}, "a stranger serves"
    folder = world.state_dir / "slots" / pointer.digest
    verify_slot(folder, pointer.digest, pointer.choice.chosen)


@contextlib.contextmanager
def _working(disk: FaultyDisk, request: Request) -> Iterator[None]:
    """Restore the disk during the test's checks."""
    calls, failed = disk.calls, disk.failed
    disk.works()
    yield
    disk.resume(request.error, calls=calls, failed=failed)


def _try_one(request: Request, number: int, bundles: list[ExampleBundle], disk: FaultyDisk) -> int:
    """Try a device; return 0 without a failed call, 1 after a failure, 2 if reported."""
    world = _device(request, number, bundles)
    world.models.start()
    disk.fail(request.error, first=number, count=FOREVER if request.is_lasting else 1)
    reported = False
    for _ in range(TURNS):
        if not _has_heard(world):
            _offer(world, bundles[1])
        _turn(world)
        reported = reported or bool(world.models.troubles)
    if request.is_lasting:
        world.restart()  # An agent that starts on a disk that fails.
        _hold(world, bundles)
        for _ in range(TURNS):
            if not _has_heard(world):
                _offer(world, bundles[1])
            _turn(world)
            reported = reported or bool(world.models.troubles)
        with _working(disk, request):
            _check_serving(world, bundles)
    disk.works()
    failed = disk.failed
    for _ in range(200):
        if _has_heard(world):
            break
        _turn(world)
        _offer(world, bundles[1])
    assert world.settle() == "COMMITTED", world.journal.because
    assert world.pointer is not None
    assert world.pointer.bundle == bundles[1].ref, "the wanted release does not serve"
    _check_serving(world, bundles)
    for _ in range(4):
        world.now += 20
        world.models.advance()
    assert world.settle() == "COMMITTED"
    assert world.models.troubles == (), world.models.troubles
    world.restart()
    left = [path.name for path in world.state_dir.rglob(".*")]
    assert left == [], left
    assert not list(world.state_dir.rglob("*.damaged")), "a fault was taken for damage"
    shutil.rmtree(world.state_dir)
    return 0 if not failed else 2 if reported else 1


def run(request: Request) -> Result:
    """Try every call of an update."""
    disk = FaultyDisk(Path(request.control), None, Path(request.folder))
    bundles = [describe_bundle(Path(folder)) for folder in request.bundles]
    world = _device(request, -1, bundles)
    world.models.start()
    disk.count(request.error)
    _offer(world, bundles[1])
    assert world.settle() == "COMMITTED"
    disk.works()
    calls, outcomes, problems = disk.calls, dict[int, int](), dict[int, str]()
    for number in range(request.offset, calls, request.step):
        try:
            outcomes[number] = _try_one(request, number, bundles, disk)
        except (AssertionError, EdgepackError, OSError):
            disk.works()
            problems[number] = traceback.format_exc()[-3000:]
    return Result(
        calls=calls,
        tried=len(outcomes),
        hit=sum(outcome > 0 for outcome in outcomes.values()),
        silent=tuple(number for number, outcome in outcomes.items() if outcome == 1),
        problems=problems,
    )


if __name__ == "__main__":
    print(json.dumps(msgspec.to_builtins(run(msgspec.json.decode(sys.argv[1], type=Request)))))
