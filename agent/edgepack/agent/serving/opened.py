"""A release as one process serves it, with what runs beside it while it soaks."""

from pathlib import Path

from edgepack.agent.runtime.sessions import Session
from edgepack.agent.runtime.slot_opening import open_slot
from edgepack.agent.serving.shadow import ShadowRunner
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.telemetry.spool import Record


class OpenedModel:
    """One opened model. Running inferences hold on to it, so a swap never takes it from them."""

    def __init__(
        self, pointer: ActivePointer, session: Session, record: Record, shadow: ShadowRunner | None
    ) -> None:
        self.pointer = pointer
        self.session = session
        self.record = record
        self.shadow = shadow

    def end_shadow(self) -> None:
        """From now on the release before does not run beside it."""
        shadow, self.shadow = self.shadow, None
        if shadow is not None:
            shadow.close()


def open_release(
    state_dir: Path, pointer: ActivePointer, record: Record, *, threads: int
) -> OpenedModel:
    """Opens what a pointer leads to.

    Args:
        state_dir: The agent's state folder.
        pointer: Names the release, and what is to run beside it.
        record: Where is counted what inferences take and see.
        threads: Threads within an operator; 0 leaves it to ONNX Runtime.

    Raises:
        BundleError: The files are not what was installed.
        DeviceError: The provider is not here, or fails, or the files cannot be decrypted.
    """
    opened = open_slot(state_dir, pointer.digest, pointer.choice.chosen, threads=threads)
    reference = opened.manifest.facts.reference
    if isinstance(reference, tuple):
        record.values.expect(reference)
    shadow = None
    if pointer.shadow is not None:
        shadow = ShadowRunner(state_dir, pointer.shadow, opened, record.shadowed)
    return OpenedModel(pointer, opened.session, record, shadow)
