"""Installation of a hook for the agent."""

import importlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from edgepack.errors import DeviceError
from edgepack.firmware_hooks.answer import HookParser, SettingsError

HOOKS = ("require_driver", "cpu_governor", "thermal_guard", "restart_service", "firmware")
STAGES = ("offered", "staged", "installing", "activating", "committed", "rolled_back")
WHENS = ("before", "after")


def hook_parser(name: str) -> HookParser:
    """Return the settings of a reference hook."""
    parser: HookParser = importlib.import_module(f"edgepack.firmware_hooks.{name}").parser()
    return parser


def hook_path(name: str, *, stage: str, when: str, folder: Path, order: int) -> Path:
    """Return the place of a hook in a hook folder.

    Args:
        name: A key of `HOOKS`.
        stage: A stage of `STAGES`.
        when: A value of `WHENS`.
        folder: The hook folder.
        order: 0 to 99: hooks of a stage run in this order.
    """
    return folder / f"{stage}.{when}.d" / f"{order:02d}-{name}"


def install_hook(name: str, hook: Path, settings: Sequence[str]) -> None:
    """Write an executable that runs a reference hook with these settings.

    The hook runs with the agent's own Python, which the agent names in EDGEPACK_PYTHON, so that the
    same file also works in a bundle.

    Args:
        name: A key of `HOOKS`.
        hook: The file to write; its folder is created, and an existing file is replaced.
        settings: Each `key=value`, or `key` alone for a switch, as the hook's `--key value`.

    Raises:
        DeviceError: A setting is unknown or wrong, or the folder cannot be written.
    """
    arguments = [word for setting in settings for word in _as_arguments(setting)]
    try:
        hook_parser(name).parse_args(arguments)
    except SettingsError as error:
        raise DeviceError(
            f"settings of hook {name} are wrong: {error}",
            remedy=f"python -P -m edgepack.firmware_hooks.{name} --help",
        ) from error
    command = f'"${{EDGEPACK_PYTHON:-python3}}" -I -m edgepack.firmware_hooks.{name}'
    try:
        hook.parent.mkdir(parents=True, exist_ok=True)
        hook.write_text(f"#!/bin/sh\nexec {command} {shlex.join(arguments)}".rstrip() + "\n")
        hook.chmod(0o755)
    except OSError as error:
        raise DeviceError(
            f"the hook cannot be written: {error.strerror}", found_in=str(hook)
        ) from error


def _as_arguments(setting: str) -> list[str]:
    key, is_pair, value = setting.partition("=")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
        raise DeviceError(f"a setting is written as key=value, not {setting!r}")
    return [f"--{key}={value}"] if is_pair else [f"--{key}"]
