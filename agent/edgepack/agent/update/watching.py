"""The watch over a committed release: measures, judges by the watch's table, and acts.

The agent acts by itself. Each decision is saved in the journal first, so that no restart forgets a
decision, and is reported as wanted, chosen, because.
"""

import logging
import math

import msgspec

from edgepack.agent.config import WatchConfig
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.telemetry.pace import Interval, Pace
from edgepack.agent.update.basis_watch import BasisWatch, degraded, moved_to
from edgepack.agent.update.choosing import (
    check_files,
    choose_again,
    probe_afresh,
    repoint,
)
from edgepack.agent.update.context import Evidence, NotYetError, UpdateContext, Wait
from edgepack.agent.update.journal import WatchNote
from edgepack.agent.update.observing import observe_serving
from edgepack.agent.update.remembering import name_pointer, name_variant, title_variant
from edgepack.agent.update.transitions import MAX_TEXT, Transitions
from edgepack.agent.watch.evidence import describe_harm
from edgepack.agent.watch.ledger import Ledger
from edgepack.agent.watch.observed import Observed
from edgepack.agent.watch.slowness import INTERVALS, continue_past, slowdown_of
from edgepack.agent.watch.table import ROWS, STATES, Symptom, judge_all
from edgepack.wire.orders import RunModel
from edgepack.wire.reports import Choice, ProbeResult, Watched

log = logging.getLogger(__name__)

CALM_DAY_S = 24 * 3600.0


class Watcher:
    """The watch over a model's serving release.

    Args:
        context: The model's update.

    Attributes:
        heard: Reports of processes that could not open the release, not yet taken.
    """

    def __init__(self, context: UpdateContext) -> None:
        self._context = context
        self._evidence = Evidence()
        self._ledger: Ledger | None = None
        self._look_at = 0.0
        self._basis = BasisWatch(context)
        self._started = self._since = context.now()
        self._calm_from: float | None = None
        self._noted: dict[str, str] = {}
        self._found: list[Symptom] = []
        self._damage: Evidence | None = None
        self._heat, self._hot_at = "", -math.inf
        self._cancelled, self._retry_at = 0, context.now() + self._retry_s(0)
        self.heard: list[str] = []

    @property
    def _settings(self) -> WatchConfig:
        return self._context.deps.config.watch

    def turn(self, transitions: Transitions) -> Wait | None:
        """Continue to watch; the model's update is at rest.

        Returns:
            None when the update may begin something else; until then a probe is under way.

        Raises:
            OSError: The disk is full or broken.
        """
        if not self._context.is_clear():
            return Wait(seconds=None)
        has_looked = self._listen()
        try:
            self._leave_damaged_files(transitions)
            self._basis.turn(transitions)
            self._judge(transitions, has_looked=has_looked)
        except NotYetError:
            return Wait(seconds=None)
        return None

    @property
    def due_s(self) -> float | None:
        """Seconds until the next look; None while nothing serves or served."""
        basis = self._basis
        if self._ledger is None and not basis.trouble:
            return None
        at = basis.at if self._ledger is None else min(self._look_at, basis.at)
        return max(0.0, at - self._context.now())

    @property
    def trouble(self) -> str:
        """Reason why no release serves after a commit; "" if a release serves."""
        return self._basis.trouble

    def compare_again(self) -> None:
        """Compare the choice of the serving release with this device at the next turn."""
        self._basis.at = 0.0
        self._context.read_facts()

    def note(self, symptom: Symptom, because: str, transitions: Transitions) -> None:
        """Note a fact that another part measures, such as damage; "" for its end.

        Raises:
            OSError: The journal cannot be written.
        """
        is_new = bool(because) and self._noted.get(symptom) != because
        if is_new and "intact" in ROWS[symptom].steps:
            self._damage = Evidence()
        self._noted[symptom] = because
        pointer = self._context.model.pointer.read()
        if is_new and pointer is not None and "variant" not in ROWS[symptom].steps:
            self._degrade(pointer, symptom, because, transitions, is_news=True)

    @property
    def _memory(self) -> WatchNote:
        return self._context.journal.watch

    def _listen(self) -> bool:
        """Collect the reports of processes, if due; return whether it was."""
        context, now = self._context, self._context.now()
        pointer = context.model.pointer.read()
        if pointer is None or not pointer.committed:
            self._ledger = None
            return False
        key = (pointer.digest, pointer.choice.chosen)
        if self._ledger is None or self._ledger.key != key:
            self._ledger = Ledger(*key, self._settings.interval_s, since=now)
            self._calm_from, self._since = None, now
        if now < self._look_at:
            return False
        self._look_at = now + self._settings.look_s
        self._heat = context.deps.tools.heat()
        self._hot_at = now if self._heat else self._hot_at
        collected = context.model.collect()
        self.heard += [trouble.because for trouble in collected.troubles]
        for window in collected.telemetry:
            self._ledger.add(window, now=now, wall=context.deps.clock.wall())
        return True

    def _observe(self) -> Observed:
        if self._ledger is None:
            return Observed(is_soaking=False)
        # As much time before must be known, too: some applications are killed each minute.
        since = max(self._since, (self._context.now() + self._started) / 2)
        is_hot = self._context.now() - self._hot_at < INTERVALS * self._settings.interval_s
        return msgspec.structs.replace(
            observe_serving(self._context, self._ledger, since=since),
            before=self._past(*self._ledger.key),
            left_at=self._since if self._left(*self._ledger.key, "process") else 0.0,
            slowdown=0.0 if is_hot else self._settings.slowdown,
            golden=self._noted.get("golden", ""),
            damage=self._noted.get("damage", ""),
            harm=describe_harm(self._context.deps.tools.drift_of(self._ledger.key[0])),
            heat=self._heat,
        )

    def _past(self, digest: str, variant: str) -> Pace:
        """Return the past hour of a variant; after slowness, with the hour of the variant before.

        Otherwise a variant that is as slow from its first inference would seem as fast as ever.
        """
        pace_of = self._context.deps.tools.pace_of
        own, left = pace_of(digest, variant), self._left(digest, variant, "slow")
        return (
            continue_past(pace_of(digest, left[-1]), own, self._settings.slowdown) if left else own
        )

    def _left(self, digest: str, variant: str, symptom: Symptom) -> list[str]:
        """Return the other variants of a release that the watch left, if it last acted on a
        symptom; the last one comes last.
        """
        note = self._memory
        names = (key.split(" ", 1) for key in note.left if key != name_variant(digest, variant))
        left = [name[1] for name in names if name[0] == digest]
        return left if symptom in (note.told.symptom, note.moved.symptom) else []

    def _judge(self, transitions: Transitions, *, has_looked: bool) -> None:
        """Act on the first symptom with sufficient evidence; else report the newest.

        Raises:
            NotYetError: A probe is under way.
        """
        pointer, told = self._context.model.pointer.read(), self._memory.told
        if pointer is None or not pointer.committed:
            return
        if told.state == "HEALING":
            self._heal(pointer, transitions)
            return
        if not has_looked:
            return
        found = {s: v.because for s, v in judge_all(self._observe()) if v.answer == "proven"}
        before = [one for one in self._found if one in found]
        self._found = [one for one in found if one not in before] + before
        if not found:
            self._recover(transitions)
            return
        self._calm_from = None
        symptom = next((one for one in found if self._is_open(one, pointer)), self._found[0])
        because = found[symptom]
        if not self._is_open(symptom, pointer):
            because = "; ".join(filter(None, (because, self._memory.shared.get(symptom))))
            self._degrade(pointer, symptom, because, transitions)
        elif told.acts >= self._settings.max_acts:
            because += f"; nothing is tried, since the watch acted {told.acts} times already"
            self._degrade(pointer, symptom, because, transitions)
        else:
            self._begin(pointer, symptom, because, transitions)
            self._heal(pointer, transitions)

    def _is_open(self, symptom: Symptom, pointer: ActivePointer) -> bool:
        """Check whether a symptom has an action that was not tried yet, or is due again."""
        key = f"{symptom} {name_pointer(pointer)}"
        is_tried = key in self._memory.tried and self._context.now() < self._retry_at
        is_known = is_tried or symptom in self._memory.shared
        return "variant" in ROWS[symptom].steps and not is_known

    def _begin(
        self, pointer: ActivePointer, symptom: Symptom, because: str, transitions: Transitions
    ) -> None:
        """Save that a variant is left, before anything is tried."""
        note, title = self._memory, title_variant(pointer)
        told = Watched(
            state=STATES["WATCHING"].found or "HEALING",
            symptom=symptom,
            wanted=note.told.wanted or title,
            chosen=title,
            because=because[:MAX_TEXT],
            since=self._context.deps.clock.wall(),
            acts=note.told.acts + 1,
        )
        left = note.left | {name_pointer(pointer): f"{symptom}: {because}"}
        self._evidence = Evidence()
        transitions.watch(msgspec.structs.replace(note, told=told, left=left))

    def _leave_damaged_files(self, transitions: Transitions) -> None:
        """Serve another variant of the release at once, if only the serving variant is damaged.

        The journal's committed variant stays: the repair of the slot brings that variant back.

        Raises:
            NotYetError: Files are being read, or a probe is under way.
        """
        context, evidence, note = self._context, self._damage, self._memory
        pointer = context.model.pointer.read()
        if evidence is None or pointer is None or not pointer.committed:
            return
        if note.told.state == "HEALING":
            return
        if problem := check_files(context, evidence, pointer.digest, pointer.choice.chosen):
            choice = choose_again(context, pointer, evidence, left=note.left)
            if choice.chosen:
                moved = repoint(context, pointer, choice)
                context.model.pointer.write(moved)
                title = title_variant(pointer)
                because = f"{title_variant(moved)} serves instead of {title}: {problem}"
                told = degraded(context, "damage", note.told.wanted or title, moved, because)
                transitions.watch(msgspec.structs.replace(note, told=told))
        self._damage = None

    def _heal(self, pointer: ActivePointer, transitions: Transitions) -> None:
        """Try the next right variant, then the previous release, then variants that were only slow;
        report when none is better. Return to the wanted release if two releases show the symptom.

        A switch that a restart interrupted is completed.

        Raises:
            NotYetError: A probe is under way; call again.
        """
        context, evidence, note = self._context, self._evidence, self._memory
        if name_pointer(pointer) not in note.left:
            self._finish(pointer, transitions)
            return
        if self._return_to_wanted(pointer, transitions):
            return
        previous = context.journal.previous
        releases = [pointer]
        if previous is not None and previous.digest != pointer.digest:
            releases.append(previous)
        probe_afresh(context, evidence, *releases)
        most_ms = self._most_ms(pointer)
        if most_ms is None:
            self._cancel(pointer, "it passed while other variants were probed", transitions)
            return
        reasons = []
        tries = [(release, note.left) for release in releases]
        if note.told.symptom != "slow":  # A slow variant is right, at least.
            wrong = {key: why for key, why in note.left.items() if not why.startswith("slow: ")}
            tries += [(release, wrong) for release in releases if len(wrong) < len(note.left)]
        for release, left in tries:
            choice = choose_again(context, release, evidence, left=left)
            probe = _probe_of(choice, choice.chosen)
            if probe is not None and (probe.inference_ms or 0.0) <= most_ms:
                moved = repoint(context, release, choice)
                context.model.pointer.write(moved)
                self._evidence = Evidence()
                self._finish(moved, transitions)
                return
            slow = (
                f"{title_variant(release, choice)} takes {probe.inference_ms:.3g} ms"
                if probe
                else ""
            )
            reasons.append(f"{release.bundle.version}: {slow or choice.because}")
        self._cancel(pointer, f"nothing better is here: {'; '.join(reasons)}", transitions)

    def _return_to_wanted(self, pointer: ActivePointer, transitions: Transitions) -> bool:
        """Serve the release again that was left first, if two releases show the symptom.

        Returns:
            False if a single release shows the symptom, or the other release is not right.

        Raises:
            NotYetError: A probe is under way; call again.
        """
        context, evidence, note = self._context, self._evidence, self._memory
        journal = context.journal
        symptom, committed, wanted = note.told.symptom, journal.committed, journal.previous
        same = {key: why for key, why in note.left.items() if why.startswith(f"{symptom}: ")}
        of = {key.split(" ", 1)[0]: why.removeprefix(f"{symptom}: ") for key, why in same.items()}
        if committed is None or wanted is None or symptom not in ROWS:
            return False
        if not ROWS[symptom].shared or len({committed.digest, wanted.digest} & of.keys()) < 2:
            return False
        choice = pointer.choice
        if pointer.digest != wanted.digest:  # Else a restart interrupted the return.
            probe_afresh(context, evidence, wanted)
            choice = choose_again(context, wanted, evidence)
            if not choice.chosen:
                return False
            pointer = repoint(context, wanted, choice)
            context.model.pointer.write(pointer)
            self._evidence = Evidence()
        evidence_of_both = "; ".join(
            f"with {one.bundle.version}: {of[one.digest]}" for one in (wanted, committed)
        )
        because = (
            f"{ROWS[symptom].shared} is to blame, since two releases show the same: "
            f"{evidence_of_both}; {title_variant(pointer)} serves again"
        )[:MAX_TEXT]
        told = msgspec.structs.replace(
            note.told,
            state=STATES["HEALING"].done or "DEGRADED",
            chosen=title_variant(pointer),
            because=because,
            since=context.deps.clock.wall(),
        )
        note = WatchNote(
            told=told,
            moved=moved_to(told),
            left={key: why for key, why in note.left.items() if key not in same},
            shared=note.shared | {symptom: because},
        )
        changes, offer = {"committed": pointer, "previous": committed}, journal.offer
        if isinstance(offer, RunModel) and offer.bundle == pointer.bundle:
            transitions.move("COMMITTED", because, watch=note, choice=choice, **changes)
        else:
            transitions.watch(note, because, **changes)
        return True

    def _most_ms(self, pointer: ActivePointer) -> float | None:
        """Return the latency that another variant may have, milliseconds; None if none is needed.

        Only slowness limits the latency. The device is slow if golden samples, which the serving
        variant runs again, explain the slowness; another variant must be faster on the slow device.
        Otherwise the release is slow on real inputs, if inferences since the probe are slow, too: a
        burst of load may have ended before the probe.

        Raises:
            NotYetError: A probe, or the interval after the probe, is under way.
        """
        if self._memory.told.symptom != "slow":
            return float("inf")
        serving, limit = pointer.choice.chosen, max(self._settings.slowdown, 1.0)
        own = choose_again(self._context, pointer, self._evidence, only=serving)
        ledger, observed = self._ledger, self._observe()
        is_slow = any(symptom == "slow" for symptom, _ in judge_all(observed))
        if ledger is None or not ledger.recent or not is_slow:
            return None
        fresh, usual = _probe_of(own, serving), _probe_of(pointer.choice, serving)
        if fresh is None:
            return float("inf")  # The variant is not even right any more.
        now_ms, golden_ms = ledger.recent[-1].latency_ms, fresh.inference_ms or 0.0
        of_device = golden_ms / ((usual and usual.inference_ms) or float("inf"))
        of_inferences = slowdown_of(observed.before, now_ms, limit)
        if of_device >= max(limit, of_inferences / limit):
            return golden_ms / limit
        since = self._since_probe(ledger)
        if since is None or slowdown_of(observed.before, since.latency_ms, limit) < limit:
            return None
        return since.latency_ms / limit

    def _since_probe(self, ledger: Ledger) -> Interval | None:
        """Return the first interval after the probe; None if too few inferences follow.

        Raises:
            NotYetError: The interval is under way.
        """
        now, evidence = self._context.now(), self._evidence
        if evidence.probed_at is None:
            evidence.probed_at = now
            ledger.begin_fresh(now)
        patience_s = max(self._settings.interval_s, 2 * ledger.recent[-1].length_s)
        if ledger.fresh is None and now < evidence.probed_at + patience_s:
            raise NotYetError
        return ledger.fresh

    def _finish(self, pointer: ActivePointer, transitions: Transitions) -> None:
        """Save and report what serves instead."""
        note, committed = self._memory, self._context.journal.committed
        told = msgspec.structs.replace(
            note.told,
            state=STATES["HEALING"].done or "DEGRADED",
            chosen=title_variant(pointer),
            because=(
                f"{title_variant(pointer)} serves instead of {note.told.chosen}: "
                f"{note.told.because}; {pointer.choice.because}"
            )[:MAX_TEXT],
            since=self._context.deps.clock.wall(),
        )
        left = {name: why for name, why in note.left.items() if name != name_pointer(pointer)}
        note = msgspec.structs.replace(note, told=told, moved=moved_to(told), left=left)
        if committed is None or committed.digest == pointer.digest:
            transitions.watch(note, committed=pointer)
        else:
            changes = {"committed": pointer, "previous": committed}
            transitions.move("ROLLED_BACK", told.because, watch=note, **changes)

    def _cancel(self, pointer: ActivePointer, because: str, transitions: Transitions) -> None:
        """Keep the variant that serves, and report the symptom.

        The device may have been busy, or short of memory, while others were probed: as long as the
        symptom lasts, they are tried again, after waits that double up to a day.
        """
        note, key = self._memory, name_pointer(pointer)
        symptom = note.told.symptom
        told = msgspec.structs.replace(
            note.told,
            acts=max(0, note.told.acts - 1),
            state=STATES["HEALING"].done or "DEGRADED",
            because=f"{note.told.because}; {because}"[:MAX_TEXT],
        )
        left = {name: why for name, why in note.left.items() if name != key}
        self._evidence = Evidence()
        tried = tuple(dict.fromkeys((*note.tried, f"{symptom} {key}")))
        self._retry_at = self._context.now() + self._retry_s(self._cancelled)
        self._cancelled += 1
        transitions.watch(msgspec.structs.replace(note, told=told, left=left, tried=tried))

    def _retry_s(self, cancelled: int) -> float:
        """Return the seconds until another try, after so many that found nothing better."""
        return min(INTERVALS * self._settings.interval_s * 2.0**cancelled, CALM_DAY_S)

    def _degrade(
        self,
        pointer: ActivePointer,
        symptom: Symptom,
        because: str,
        transitions: Transitions,
        *,
        is_news: bool = False,
    ) -> None:
        """Report a symptom, once unless the reason is news; the wanted variant stays known."""
        told, title = self._memory.told, title_variant(pointer)
        known = (told.state, told.symptom, told.chosen)
        if known == ("DEGRADED", symptom, title) and not is_news:
            return
        told = degraded(self._context, symptom, told.wanted or title, pointer, because)
        transitions.watch(msgspec.structs.replace(self._memory, told=told))

    def _recover(self, transitions: Transitions) -> None:
        """Report the end of a symptom after a calm minute; forget actions after a calm day.

        After the end, the last move is reported again, while another variant serves than wanted.
        """
        now, note = self._context.now(), self._memory
        told = note.told
        self._calm_from = now if self._calm_from is None else self._calm_from
        calm_s = now - self._calm_from
        after, wall = STATES["DEGRADED"].calm or "WATCHING", self._context.deps.clock.wall()
        rest = Watched(state=after, since=wall) if not note.moved.wanted else note.moved
        rest = msgspec.structs.replace(rest, acts=told.acts)
        if told.state == "DEGRADED" and told != rest and calm_s >= self._settings.calm_s:
            note = msgspec.structs.replace(note, told=rest, tried=())
            self._cancelled = 0
            transitions.watch(note)
        elif told.acts and calm_s >= CALM_DAY_S:
            told = msgspec.structs.replace(told, acts=0)
            note = msgspec.structs.replace(note, told=told, shared={})
            self._context.model.store.update(watch=note)


def _probe_of(choice: Choice, variant: str) -> ProbeResult | None:
    """Return the probe of a variant that was right; None without one."""
    return next((one for one in choice.probes if one.variant == variant and one.right), None)
