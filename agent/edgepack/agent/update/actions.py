"""Actions of the agent: a function for each state of the life cycle.

Each action can run again from its beginning, and does after a restart. An action ends (`Ended`), or
waits for time, messages or long work (`Wait`) and is called again.
"""

from collections.abc import Callable

from edgepack.agent.transfer.chunk_status import ChunkOutcome, Content
from edgepack.agent.transfer.download import Download
from edgepack.agent.transfer.manifest_download import ManifestDownload
from edgepack.agent.update.activation import activate, remove, roll_back, settle_commit, soak
from edgepack.agent.update.context import Ended, NotYetError, Step, UpdateContext, Wait
from edgepack.agent.update.dependencies import AgentDependencies, ModelParts
from edgepack.agent.update.fetching import fetch_files, judge_offer
from edgepack.agent.update.firmware import (
    confirm_firmware,
    install_firmware,
    restart_device,
    revert_firmware,
    why_off_trial,
)
from edgepack.agent.update.lifecycle import TABLE, State
from edgepack.agent.update.probing import after_staging, before_staging, probe
from edgepack.agent.update.shadow_first import shadow_first
from edgepack.agent.update.watching import Watcher
from edgepack.wire.coded import CodedChunk
from edgepack.wire.reports import DeviceFacts

ACTIONS: dict[State, Callable[[UpdateContext], Step]] = {
    "OFFERED": judge_offer,
    "DOWNLOADING": fetch_files,
    "VERIFIED": before_staging,
    "STAGED": after_staging,
    "INSTALLING": install_firmware,
    "REBOOTING": restart_device,
    "PROBING": probe,
    "SHADOWING": shadow_first,
    "ACTIVATING": activate,
    "SOAKING": soak,
    "CONFIRMING": confirm_firmware,
    "COMMITTED": settle_commit,
    "ROLLING_BACK": roll_back,
    "REVERTING": revert_firmware,
    "REMOVING": remove,
}
"""The states that are not here only wait for an offer."""


class Actions:
    """Carries out the action of a state.

    Args:
        deps: Dependencies of all updates.
        model: Dependencies of this update.
        note: Is notified of every hook that did not say go, and of every problem: kind and reason.

    Attributes:
        watcher: The watch over the committed release.
    """

    def __init__(
        self, deps: AgentDependencies, model: ModelParts, note: Callable[[str, str], None]
    ) -> None:
        self._context = UpdateContext(deps, model, note)
        self.watcher = Watcher(self._context)

    @property
    def facts(self) -> DeviceFacts:
        """Facts of the device, as last read."""
        return self._context.facts

    @property
    def progress(self) -> float:
        """Share of the bytes that are there, 0..1, while downloading."""
        scratch = self._context.scratch
        return scratch.download.progress if scratch.download and scratch.is_prepared else 0.0

    @property
    def is_busy(self) -> bool:
        """True if long work of the action is under way."""
        return bool(self._context.scratch.jobs)

    def act(self) -> Step:
        """Run or continue the action of the journal's state.

        Raises:
            OSError: The disk is full or broken.
            EdgepackError: The fetched data or this device forbids to continue.
        """
        state = self._context.journal.state
        action = ACTIONS.get(state)
        if action is None or not self._context.is_clear():
            return Wait(seconds=None)
        if TABLE[state].is_on_trial and (because := why_off_trial(self._context)):
            return Ended(outcome="failure", because=because)
        try:
            step = action(self._context)
        except NotYetError:
            return Wait(seconds=None)
        told = self._context.scratch.waits
        if isinstance(step, Wait) and step.because and step.because not in told:
            told.add(step.because)
            self._context.note("wait", step.because)
            self._context.model.store.update(because=step.because)
        return step

    def leave(self) -> None:
        """Forget the action's memory after a change of state or offer."""
        self._context.leave()

    def suspend(self) -> None:
        """Note on the disk how far a download is; the agent is about to stop."""
        scratch = self._context.scratch
        if scratch.download and scratch.is_open:
            scratch.download.note()

    def free_space(self) -> None:
        """Remove the fetched files of a failed update: the journal may need the space."""
        context = self._context
        if context.journal.state == "DOWNLOADING" and context.digest not in context.own_slots():
            context.deps.slots.remove(context.digest)

    def accept_chunk(self, sha256: str, index: int, content: Content) -> ChunkOutcome:
        """Accept a chunk, if any download waits for the chunk."""
        scratch = self._context.scratch
        target = scratch.download if scratch.is_open else scratch.manifest_download
        if target is None or scratch.need_scheduler is None or scratch.trouble:
            return "unwanted"
        try:
            received = target.accept(sha256, index, content)
        except OSError as error:
            scratch.trouble = error
            return "unwanted"
        if received in ("new", "duplicate"):
            self._note_came(target, (sha256, index), received, len(content))
        return received

    def accept_coded(self, sha256: str, coded: CodedChunk) -> ChunkOutcome:
        """Accept a coded chunk likewise; a manifest has no known chunks."""
        scratch = self._context.scratch
        target = scratch.download if scratch.is_open else None
        if target is None or scratch.need_scheduler is None or scratch.trouble:
            return "unwanted"
        try:
            received = target.accept_coded(sha256, coded)
        except OSError as error:
            scratch.trouble = error
            return "unwanted"
        if received in ("new", "duplicate", "unsolved"):
            place = (sha256, target.chunk_count(sha256) + coded.number)
            self._note_came(target, place, received, len(coded.content))
        return received

    def _note_came(
        self,
        target: Download | ManifestDownload,
        place: tuple[str, int],
        received: ChunkOutcome,
        size_bytes: int,
    ) -> None:
        """Note received bytes of a wanted file, missing or not."""
        scratch, is_new = self._context.scratch, received == "new"
        if scratch.need_scheduler is not None:
            scratch.need_scheduler.note_chunk(self._context.now(), is_new=is_new, place=place)
        scratch.came_bytes += size_bytes if is_new else 0
        if is_new and not target.lacks(place[0]):
            self._context.listen_to(target)

    def own_slots(self) -> frozenset[str]:
        """Return slots that this model needs, without the slot of a running update."""
        return self._context.own_slots()

    def note_connected(self) -> None:
        """Note a new connection to the broker."""
        if self._context.scratch.need_scheduler:
            self._context.scratch.need_scheduler.note_connected(self._context.now())
