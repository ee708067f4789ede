"""The folder of firmware hooks that goes into a bundle, checked before work begins."""

from pathlib import Path

from edgepack.agent.hooks.files import find_hooks
from edgepack.agent.hooks.runner import STAGES, WHENS, check_hook_folder
from edgepack.errors import BuildError

_SHOWN = 3


def check_shipped_hooks(folder: Path) -> None:
    """Reject a folder without hooks: the whole folder would be shipped, and nothing would run.

    Args:
        folder: Value of `--hooks`.

    Raises:
        BuildError: The path is not a folder, or holds no hook.
        DeviceError: The folder holds a stage that does not exist, or a hook that cannot run.
    """
    if not folder.is_dir():
        raise BuildError(
            "the hook folder does not exist",
            found_in=str(folder),
            remedy="make it, with a folder for each stage that has hooks, or leave out --hooks",
        )
    check_hook_folder(folder)
    stages = frozenset(f"{stage}.{when}.d" for stage in STAGES for when in WHENS)
    if not any(find_hooks(folder, stage, known_names=stages) for stage in sorted(stages)):
        raise BuildError(
            f"the hook folder holds no hook, in none of {', '.join(sorted(stages)[:_SHOWN])} …",
            found_in=str(folder),
            remedy="name the folder that holds the folders of the stages",
        )
