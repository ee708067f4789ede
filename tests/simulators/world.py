"""A device without hardware, network or time: real files, keys and bundles, and chosen failures.

Everything durable is real, below a folder. The test moves the clock, chunks come from bundles on
the disk, and the power can be cut at any write or call.
"""

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.agent.config import (
    AgentConfig,
    FirmwareConfig,
    HookConfig,
    LimitConfig,
    ShadowConfig,
    TrustConfig,
    WatchConfig,
)
from edgepack.agent.hooks.runner import HookVerdict
from edgepack.agent.runtime.verification import Verified
from edgepack.agent.state.holders import Holders
from edgepack.agent.state.pointer import POINTER_FILE, ActivePointer, read_pointer
from edgepack.agent.state.slots import Slots
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.telemetry.pace import Pace
from edgepack.agent.update.dependencies import AgentDependencies, Clock, Tools
from edgepack.agent.update.journal import Journal
from edgepack.agent.update.models import Models
from edgepack.agent.update.updater import Updater
from edgepack.bundle.chunks import fixed_chunks, offsets
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import MANIFEST_FILE, Variant, decode_manifest
from edgepack.bundle.trust import TrustPolicy
from edgepack.durable import write_file
from edgepack.halt import Halt
from edgepack.wire.need_bitmap import read_missing
from edgepack.wire.reports import DeviceFacts, Drift, ProbeResult, ProviderFacts
from edgepack.wire.telemetry import Event
from edgepack.wire.transfers import Need
from tests.simulators.board import Board, SimulatedFirmware
from tests.simulators.bundles import ExampleBundle
from tests.simulators.manifests import CPU

GO = HookVerdict(verdict="go", hook="", exit_code=0, output="", because="there are no hooks")
WRONG = "cosine 0.2, at least 0.99 is needed"
START = 1_000_000.0


class PowerCutError(BaseException):
    """A power cut: no `except Exception` may catch the error."""


@dataclass
class Faults:
    """Faults, and their times.

    Attributes:
        cut_at: The power is cut at this moment: writes and calls are counted from 0.
        full_from, full_for: From this write on the disk fails, for so many writes.
        error: Number of the disk's error.
        moments, writes: Counted so far.
    """

    cut_at: int | None = None
    full_from: int | None = None
    full_for: int = 0
    error: int = errno.ENOSPC
    moments: int = 0
    writes: int = 0

    def moment(self) -> None:
        self.moments += 1
        if self.cut_at is not None and self.moments - 1 == self.cut_at:
            raise PowerCutError

    def write(self, path: Path, content: bytes) -> None:
        self.moment()
        self.writes += 1
        if self.full_from is not None:
            number = self.writes - 1
            if self.full_from <= number < self.full_from + self.full_for:
                raise OSError(self.error, os.strerror(self.error), str(path))
        write_file(path, content)
        self.moment()


class DepotLink:
    """Answers needs from bundles on the disk when the test allows this."""

    def __init__(self) -> None:
        self.files: frozenset[str] = frozenset()
        self.needs: list[Need] = []
        self.heard: list[Need] = []
        self.asked = self.wanted = 0
        self.spoil: Callable[[int, bytes], bytes | None] = lambda _index, content: content
        self._starts: dict[str, tuple[Path, tuple[int, ...]]] = {}

    def hold(self, bundle: ExampleBundle) -> None:
        for ref in (bundle.manifest, bundle.signature):
            starts = (*fixed_chunks(ref.size_bytes), ref.size_bytes)
            self._starts[ref.sha256] = (bundle.folder / ref.path, starts)
        for entry in decode_manifest((bundle.folder / MANIFEST_FILE).read_bytes()).files:
            starts = (*offsets(entry.chunks), entry.size_bytes)
            self._starts[entry.sha256] = (bundle.folder / entry.path, starts)

    def listen(self, files: frozenset[str]) -> None:
        self.files = files

    def ask(self, need: Need) -> None:
        self.asked += 1
        self.wanted += bool(need.files)
        self.needs.append(need)
        self.heard.append(need)

    def deliver(self, updater: Updater | Models) -> int:
        """Send the requested chunks; return their number."""
        needs, self.needs = self.needs, []
        sent = 0
        for need in needs:
            for wanted in need.files:
                path, starts = self._starts[wanted.sha256]
                assert wanted.chunk_count == len(starts) - 1
                content = path.read_bytes()
                for index in read_missing(wanted, len(starts) - 1):
                    chunk = self.spoil(index, content[starts[index] : starts[index + 1]])
                    if chunk is not None:
                        updater.accept_chunk(wanted.sha256, index, chunk)
                        sent += 1
        return sent


@dataclass
class World:
    """A device.

    Attributes:
        state_dir: Its state folder; exists.
        keys: Trusted keys.
        limits: Its limits.
        shadow: Its settings of shadow inferences.
        watch: Its settings of the watch.
        hook_folder: Of the device; "" for none.
        hook_answers: By `<stage>.<when>`: answers of its hooks, in turn; the last answer stays.
        wrong: Variants with a wrong probe here.
        no_probe_is_right: Why no probe is right here, with any variant; "" if probes can be right.
        probe_takes_s: Time of a probe.
        probe_ms: Latency of a variant's probe, if not 1 ms.
        collected: Next numbers of serving processes, during a soak or a comparison before it.
        said_at_rest: Next numbers without a soak. A window without a start ends as it is collected.
        paces: How fast releases served, by digest, or by digest and variant with a space.
        drift: Drift of every release.
        heat: Sign of heat.
        holders: Returns the processes that hold a model.
        verify: Results of golden samples that run again, by variant; equal if missing.
        verified: Times of these runs, in order.
        temperature_c: Highest temperature, degrees Celsius.
        unsupported: Judges precompiled contexts.
        facts: The device's facts.
        wall_ahead_s: How far the wall clock is ahead of the monotonic clock.
        faults: Faults.
        disk_patience_s: How long an update waits for a disk that does not work.
        board: Its firmware slots and bootloader.
        firmware: Its settings of the firmware.
    """

    state_dir: Path
    keys: tuple[PublicKey, ...]
    limits: LimitConfig = field(
        default_factory=lambda: LimitConfig(disk_reserve_bytes=0, max_restarts=1000)
    )
    shadow: ShadowConfig = field(default_factory=ShadowConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    hook_answers: dict[str, list[HookVerdict]] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    no_probe_is_right: str = ""
    probe_takes_s: float = 0.0
    probe_ms: dict[str, float] = field(default_factory=dict)
    collected: list[Collected] = field(default_factory=list)
    said_at_rest: list[Collected] = field(default_factory=list)
    paces: dict[str, Pace] = field(default_factory=dict)
    drift: Drift | None = None
    heat: str = ""
    holders: Callable[[], Holders] = Holders
    verify: dict[str, list[Verified]] = field(default_factory=dict)
    verified: list[float] = field(default_factory=list)
    temperature_c: float | None = None
    unsupported: Callable[[Sequence[Variant], Halt], Mapping[str, str]] = lambda *_: {}
    facts: DeviceFacts = field(default_factory=lambda: make_facts())
    faults: Faults = field(default_factory=Faults)
    disk_patience_s: float = 3600.0
    board: Board = field(default_factory=Board)
    firmware: FirmwareConfig = field(
        default_factory=lambda: FirmwareConfig(hook="/firmware", installer="sim", reboot_s=60)
    )
    link: DepotLink = field(default_factory=DepotLink)
    now: float = START
    wall_ahead_s: float = 0.0
    hook_folder: str = "/device-hooks"
    hooks_run: list[str] = field(default_factory=list)
    hook_facts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    probed: Counter[str] = field(default_factory=Counter)
    seen: list[str] = field(default_factory=list)
    on_move: Callable[[str], None] = lambda _state: None
    model: str = "tiny"

    def __post_init__(self) -> None:
        self.models = self.boot()

    @property
    def updater(self) -> Updater:
        """The update of the model that most tests are about."""
        return self.models.open(self.model)

    @property
    def journal(self) -> Journal:
        return self.updater.journal

    @property
    def pointer(self) -> ActivePointer | None:
        return read_pointer(self.state_dir, self.model)

    def has_heard(self, sequence: int) -> bool:
        """Return whether an order has reached the journal."""
        orders = (self.journal.offer, self.journal.pending)
        return any(order is not None and order.sequence >= sequence for order in orders)

    def events(self, kind: str) -> list[Event]:
        """Return the events of all models, by model."""
        return [one for each in self.models for one in each.journal.outbox if one.kind == kind]

    def boot(self) -> Models:
        """Start a new agent process on the same disk."""

        def write(path: Path, content: bytes) -> None:
            if path.name == POINTER_FILE:
                self.faults.moment()
            self.faults.write(path, content)

        firmware = SimulatedFirmware(self.board, self.faults) if self.firmware.hook else None
        deps = AgentDependencies(
            config=AgentConfig(
                device="cam-1",
                state_dir=str(self.state_dir),
                trust=TrustConfig(keys=()),
                hooks=HookConfig(folder=self.hook_folder),
                firmware=self.firmware,
                limits=self.limits,
                shadow=self.shadow,
                watch=self.watch,
            ),
            trust=TrustPolicy(keys=self.keys),
            slots=Slots(self.state_dir, write=write),
            tools=Tools(
                read_facts=lambda: replace(
                    self.facts, firmware=firmware.version if firmware else ""
                ),
                firmware=firmware,
                unsupported=lambda variants, halt: self.unsupported(variants, halt),
                probe=self._probe,
                run_hooks=self._run_hooks,
                collect=self._collect,
                pace_of=self._pace_of,
                holders=lambda: self.holders(),
                drift_of=lambda _digest: self.drift,
                heat=lambda: self.heat,
                verify=self._verify,
                temperature_c=lambda: self.temperature_c,
            ),
            write=write,
            disk_patience_s=self.disk_patience_s,
            link=self.link,
            clock=Clock(wall=lambda: self.now + self.wall_ahead_s, monotonic=lambda: self.now),
            rng=random.Random(1),
        )
        self.link.needs.clear()
        self.models = Models(deps, self._note_move)
        return self.models

    def power_cycle(self) -> None:
        """Start the device again after a power cut or a restart."""
        self.board.start()
        self.restart()

    def restart(self) -> None:
        self.boot().start()

    def settle(self, *, max_turns: int = 400) -> str:
        """Run the device until its update is finished; time passes on request."""
        for _ in range(max_turns):
            wait_s = self.models.advance()
            if self.board.is_going_down:
                self.models.suspend()
                self.power_cycle()
                continue
            if self.link.deliver(self.models):
                continue
            if all(updater.is_at_rest for updater in self.models):
                return self.journal.state
            self.now += 0.5 if wait_s is None else max(wait_s, 0.001)
        states = {updater.name: updater.journal.state for updater in self.models}
        raise AssertionError(f"the updates did not end: {states}")

    def settle_through_power_cuts(self) -> str:
        """Run the same; after a power cut the device starts again, with possible further cuts."""
        while True:
            try:
                return self.settle()
            except PowerCutError:
                self.check_pointer()
                self.power_cycle()

    def check_pointer(self) -> None:
        """Check that any serving release is complete."""
        pointer = self.pointer
        if pointer is not None:
            folder = self.state_dir / "slots" / pointer.digest
            assert (folder / "model" / pointer.choice.chosen / "model.onnx").is_file()
            assert (folder / MANIFEST_FILE).is_file()

    def _note_move(self) -> None:
        state = self.journal.state
        if not self.seen or self.seen[-1] != state:
            self.seen.append(state)
            self.on_move(state)

    def _probe(self, folder: Path, variant: Variant, _halt: Halt) -> ProbeResult:
        self.faults.moment()
        assert (folder / variant.folder / variant.model_file).is_file()
        self.probed[variant.name] += 1
        self.now += self.probe_takes_s
        problem = self.no_probe_is_right or (WRONG if variant.name in self.wrong else "")
        return ProbeResult(
            variant=variant.name,
            provider=variant.provider,
            right=not problem,
            because=problem or "cosine 1.0",
            latency_ms=self.probe_ms.get(variant.name, 1.0),
        )

    def _pace_of(self, digest: str, variant: str) -> Pace:
        return self.paces.get(f"{digest} {variant}", self.paces.get(digest, Pace()))

    def _verify(self, _folder: Path, variant: Variant, _halt: Halt) -> Verified:
        self.verified.append(self.now)
        results = self.verify.get(variant.name)
        return results.pop(0) if results else Verified(taken_s=1.0)

    def _run_hooks(
        self,
        stage: str,
        when: str,
        folders: Sequence[Path],
        facts: Mapping[str, str],
        _halt: Halt,
    ) -> HookVerdict:
        self.faults.moment()
        name = f"{stage}.{when}"
        self.hooks_run.append(name)
        self.hook_facts[name] = facts
        assert [*folders][:1] == [Path("/device-hooks")] * bool(self.hook_folder)
        answers = self.hook_answers.get(name, [GO])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def _collect(self) -> Collected:
        self.faults.moment()
        is_looked_at = self.journal.state in ("SHADOWING", "SOAKING")
        said = self.collected if is_looked_at else self.said_at_rest
        told = said.pop(0) if said else Collected()
        wall = self.now + self.wall_ahead_s
        return msgspec.structs.replace(
            told,
            telemetry=tuple(
                msgspec.structs.replace(one, window_start=max(0.0, wall - one.window_s))
                if not one.window_start
                else one
                for one in told.telemetry
            ),
        )


def make_facts(*, arch: str = "x86_64") -> DeviceFacts:
    return DeviceFacts(
        arch=arch,
        cpu_model="Example",
        cpu_count=2,
        cpu_features=(),
        memory_bytes=2**32,
        os="Example",
        python="3.11",
        agent_version="0",
        runtime="1.31.1",
        providers=(ProviderFacts(name=CPU, available=True, because="built in", devices=("cpu",)),),
        hardware_class="example",
    )


def hook_says(verdict: str, because: str = "the hook says so") -> HookVerdict:
    return HookVerdict(
        verdict=msgspec.convert(verdict, type=_VERDICT),
        hook="/device-hooks/x",
        exit_code={"go": 0, "retry": 21}.get(verdict, 1),
        output="",
        because=because,
    )


_VERDICT = HookVerdict.__annotations__["verdict"]
