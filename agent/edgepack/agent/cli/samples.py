"""Takes the inputs that a device kept out of its state folder, for a build."""

from pathlib import Path

from edgepack.agent.state.captured import FILE_MODE, captured_folder, kept_samples
from edgepack.agent.state.models import MODEL_NAME
from edgepack.agent.state.state_file import read_shared
from edgepack.durable import write_file
from edgepack.errors import DeviceError

MAX_SAMPLE_BYTES = 1024**3


def export_samples(state_dir: Path, model: str, target: Path) -> int:
    """Copy the kept inputs of a model, in order of arrival.

    Args:
        state_dir: The agent's state folder; the agent may run.
        model: The model's name.
        target: Is made, and must be empty.

    Returns:
        How many.

    Raises:
        DeviceError: No inputs are kept, inputs cannot be read, or the target cannot be written.
    """
    kept = kept_samples(state_dir, model) if MODEL_NAME.fullmatch(model) else []
    if not kept:
        raise DeviceError(
            f"no captured input of model {model!a:.120}",
            found_in=str(captured_folder(state_dir)),
            remedy="samples = 100 below [capture] of agent.toml, and restart the agent",
        )
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise DeviceError("the folder for the samples is not empty", found_in=str(target))
        count = 0
        for each in sorted(kept, key=lambda one: (one.path.lstat().st_mtime, one.path)):
            content = read_shared(each.path, limit_bytes=MAX_SAMPLE_BYTES)
            if content is None:  # Another sample took its place meanwhile.
                continue
            write_file(target / f"{count:05}.npz", content, mode=FILE_MODE, lasting=False)
            count += 1
    except OSError as error:
        raise DeviceError(
            f"the samples cannot be copied: {error}",
            found_in=str(target),
            remedy="run this as root, or as the user whose process serves the model",
        ) from error
    return count
