"""Proving a bundle on this device: the actions of VERIFIED, STAGED and PROBING."""

from edgepack.agent.pointer import read_pointer
from edgepack.agent.runtime.choice import choose
from edgepack.agent.update.work import Ended, Step, Wait, Work


def before_staging(work: Work) -> Step:
    """Asks the hooks, the bundle's own among them: its files were verified."""
    if not work.journal.was_staged:
        work.around.store.update(was_staged=True)
    return work.run_hooks("staged", "before") or Ended(
        outcome="success", because="the hooks let it be staged"
    )


def after_staging(work: Work) -> Step:
    """Asks the hooks once more, before hardware is touched."""
    return work.run_hooks("staged", "after") or Ended(
        outcome="success", because="staged, to be probed"
    )


def probe(work: Work) -> Step:
    """Probes one candidate a call, so that a newer offer need not wait for all."""
    journal, probes = work.journal, work.scratch.probes
    manifest = work.read_manifest()
    folder = work.around.slots.folder(work.digest)
    if len(probes) < len(journal.candidates):
        name = journal.candidates[len(probes)]
        result = work.around.tools.probe(folder, manifest.variant(name))
        probes.append(result)
        return Wait(seconds=0.0)
    preference = [variant.name for variant in manifest.variants]
    choice = choose(probes, journal.rejected, work.facts, work.around.config.providers, preference)
    if not choice.chosen:
        return Ended(outcome="failure", because=choice.because)
    pointer = read_pointer(work.around.state_dir)
    back = pointer if pointer and pointer.digest != work.digest else None
    return Ended(
        outcome="success",
        because=choice.because,
        changes={"choice": choice, "back": back},
    )
