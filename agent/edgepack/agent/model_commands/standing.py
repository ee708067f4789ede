"""Words for the standing of a model: watch, previous release, and update."""

import time
from collections.abc import Iterator

from edgepack.agent.update.status import ModelStatus
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import TextProof


def standing_lines(model: ModelStatus) -> Iterator[str]:
    """Yield lines about the watch, unless all is well, the previous release, and the update."""
    watch = model.watch
    if watch.state != "WATCHING":
        yield f"watch     {watch.state} since {local_time(watch.since)}: {watch.symptom}"
        yield f"          wanted {watch.wanted}, chosen {watch.chosen or 'nothing'}"
        yield f"          {watch.because}"
    if model.previous:
        yield f"previous  {title_of(model.previous)}"
    rollout = f" (rollout {model.rollout})" if model.rollout else ""
    about = f": {title_of(model.target)}{rollout}" if model.target else ""
    yield f"update    {model.state}{about}"
    if model.because:
        yield f"          {model.because}"
    if model.pending:
        yield f"next      {title_of(model.pending)}"


def text_lines(proof: TextProof) -> Iterator[str]:
    """Yield lines about the proof and the pace of texts."""
    yield f"texts     {proof.because}"
    for pace in proof.paces:
        yield f"          {pace.words}"


def title_of(bundle: BundleRef) -> str:
    """Return name, version and release of a bundle."""
    return f"{bundle.name} {bundle.version} (release {bundle.release})"


def local_time(at: float) -> str:
    """Return a time in seconds since the epoch as the device's local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
