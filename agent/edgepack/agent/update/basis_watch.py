"""The basis of a choice: another variant serves when the device's facts have changed."""

import logging
from typing import Any

import msgspec

from edgepack.agent.runtime.basis import describe_change
from edgepack.agent.runtime.providers import why_nothing_runs
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.choosing import choose_again, is_gone, lacks_files, repoint
from edgepack.agent.update.context import Evidence, UpdateContext
from edgepack.agent.update.journal import NOTHING_SERVES, WatchNote
from edgepack.agent.update.remembering import title_variant
from edgepack.agent.update.transitions import MAX_TEXT, Transitions
from edgepack.agent.watch.observed import Observed
from edgepack.agent.watch.table import ROWS, Symptom
from edgepack.errors import DeviceError
from edgepack.wire.orders import RunModel
from edgepack.wire.reports import Choice, Watched

log = logging.getLogger(__name__)

RETRY_S = 600.0
"""How long the agent waits before it probes again a release of which no variant worked."""
BASIS_S = 60.0
"""Seconds between comparisons of the device's facts with the basis of the choice."""


def degraded(
    context: UpdateContext,
    symptom: Symptom,
    wanted: str,
    pointer: ActivePointer | None,
    because: str,
) -> Watched:
    """Return the report of a symptom.

    Args:
        context: The model's update.
        symptom: Symptom to report.
        wanted: Title of the variant that should serve.
        pointer: The release that serves; None if none does.
        because: Reason, as a sentence.
    """
    return Watched(
        state="DEGRADED",
        symptom=symptom,
        wanted=wanted,
        chosen=title_variant(pointer) if pointer else "",
        because=because[:MAX_TEXT],
        since=context.deps.clock.wall(),
        acts=context.journal.watch.told.acts,
    )


def moved_to(told: Watched) -> Watched:
    """Return the report of a move to remember; none if the wanted variant serves."""
    return told if told.wanted != told.chosen else Watched()


class BasisWatch:
    """Compares the choice of the serving release with the device, at the start and each minute.

    Args:
        context: The model's update.

    Attributes:
        at: When to compare next, by the context's clock, seconds.
        trouble: Why no release serves after a commit; "" if a release serves.
    """

    def __init__(self, context: UpdateContext) -> None:
        self._context = context
        self._evidence = Evidence()
        self.at = 0.0
        self.trouble = ""

    def turn(self, transitions: Transitions) -> None:
        """Choose again if the basis of the choice is gone: at the start and each minute.

        Raises:
            NotYetError: A probe is under way.
        """
        if self._context.now() < self.at:
            return
        self.trouble = self._choose(transitions)
        self._evidence = Evidence()
        self.at = self._context.now() + (RETRY_S if self.trouble else BASIS_S)

    def _choose(self, transitions: Transitions) -> str:
        """Choose again for the release that serves, or served, if its basis is gone.

        While no execution provider is usable, no release can be tried, and all stays unchanged.

        1. The best variant of the same release that works takes over.
        2. If none does, the release that was committed before takes over.
        3. If that does not work either, nothing serves: the pointer is removed, and the files stay.

        Returns:
            Why nothing serves, as a sentence; "" if a release serves or nothing was ever committed.
        """
        context, evidence, journal = self._context, self._evidence, self._context.journal
        pointer = context.model.pointer.read() or journal.committed
        facts = context.facts if evidence.checked else context.read_facts()
        providers = context.deps.config.providers
        if pointer is None or not pointer.committed:
            return ""
        try:
            changed = describe_change(pointer.basis, context.basis(pointer.base))
        except DeviceError:  # The pointer of an adapter's base cannot be read now.
            return ""
        verdict = ROWS["basis"].judge(Observed(is_soaking=False, basis=changed))
        if verdict.answer != "proven" or why_nothing_runs(facts.providers, providers.allow):
            return ""  # `Models` reports the latter, and has this done again.
        choice = choose_again(context, pointer, evidence)
        if choice.chosen:  # 1
            self._keep(pointer, choice, changed, transitions)
            return ""
        version = pointer.bundle.version
        because = f"{version} does not work here any more ({changed}): {choice.because}"
        previous = journal.previous
        if previous is not None and previous.digest != pointer.digest:  # 2
            chosen = choose_again(
                context, previous, evidence, left=self._context.journal.watch.left
            )
            if chosen.chosen:
                back = repoint(context, previous, chosen)
                context.model.pointer.write(back)
                because = f"{previous.bundle.version} serves again: {because}"
                changes: dict[str, Any] = {"committed": back, "previous": pointer}
                offer = journal.offer
                if isinstance(offer, RunModel) and offer.bundle == back.bundle:  # It came back.
                    told = Watched(acts=journal.watch.told.acts)
                    changes |= {"choice": chosen, "watch": WatchNote(told=told)}
                    transitions.move("COMMITTED", because, **changes)
                else:
                    note = self._note(pointer, back, because)
                    transitions.move("ROLLED_BACK", because, watch=note, **changes)
                return ""
        because = f"{NOTHING_SERVES}{because}"  # 3
        context.model.pointer.remove()
        if (journal.state, journal.because) != ("ROLLED_BACK", because[:MAX_TEXT]):
            note = self._note(pointer, None, because)
            gone = msgspec.structs.replace(pointer, basis={})
            transitions.move("ROLLED_BACK", because, committed=gone, watch=note)
            if lacks_files(evidence, pointer.digest) and context.journal.pending is None:
                context.model.store.update(pending=context.journal.repair)
        return because

    def _keep(
        self, pointer: ActivePointer, choice: Choice, changed: str, transitions: Transitions
    ) -> None:
        """Serve the release with this choice, also if nothing served before."""
        context, journal, note = self._context, self._context.journal, self._context.journal.watch
        chosen = repoint(context, pointer, choice)
        context.model.pointer.write(chosen)
        wanted = note.told.wanted or title_variant(pointer)
        is_right = any(
            probe.right and title_variant(pointer, choice, probe.variant) == wanted
            for probe in choice.probes
        )
        because = f"{choice.chosen} replaces {pointer.choice.chosen} ({changed}): {choice.because}"
        if title_variant(chosen) == wanted or is_right:
            note = WatchNote(told=Watched(acts=note.told.acts))
        else:
            note = self._note(pointer, chosen, because)
        is_known = journal.committed is not None and journal.committed.digest == chosen.digest
        changes = {"committed": chosen} if is_known else {}
        if is_gone(journal):
            because = f"{pointer.bundle.version} serves again ({changed}): {choice.because}"
            offer = journal.offer
            if isinstance(offer, RunModel) and offer.bundle == chosen.bundle:
                transitions.move("COMMITTED", because, choice=choice, watch=note, **changes)
            else:
                because = because[:MAX_TEXT]
                context.model.store.update(because=because, watch=note, **changes)
        elif choice.chosen != pointer.choice.chosen:
            transitions.watch(note, because, **changes)
        else:
            log.info(
                "model=%s variant=%s is right again: %s", context.model.name, choice.chosen, changed
            )
            context.model.store.update(watch=note, **changes)

    def _note(
        self, pointer: ActivePointer, chosen: ActivePointer | None, because: str
    ) -> WatchNote:
        wanted = self._context.journal.watch.told.wanted or title_variant(pointer)
        told = degraded(self._context, "basis", wanted, chosen, because)
        return WatchNote(told=told, moved=moved_to(told))
