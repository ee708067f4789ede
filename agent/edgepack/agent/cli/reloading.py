"""Reading the settings again while the agent runs: a reload by SIGHUP."""

import logging
from collections.abc import Callable
from pathlib import Path

from edgepack.agent.config import AgentConfig, read_config
from edgepack.agent.daemon.reload import merge_settings
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import EdgepackError

log = logging.getLogger(__name__)


def read_again(
    path: Path, current: AgentConfig, check: Callable[[AgentConfig], TrustPolicy]
) -> tuple[AgentConfig, TrustPolicy] | None:
    """Return the settings in effect after a reload and the accepted signers; log every change.

    Args:
        path: The settings file.
        current: Settings in effect.
        check: Returns the accepted signers of settings, or raises EdgepackError for settings that
            cannot be used on this device.

    Returns:
        None if the file cannot be used: the agent keeps all settings then.
    """
    try:
        reload = merge_settings(current, read_config(path))
        trust = check(reload.config)
    except (EdgepackError, OSError) as error:
        place, remedy = getattr(error, "found_in", ""), getattr(error, "remedy", "")
        log.error(  # noqa: TRY400 (the problem of a file, for a person)
            "settings not reloaded: %s; found in: %s; try: %s; the settings before stay in effect",
            error.args[0] if isinstance(error, EdgepackError) else error,
            place or path,
            remedy or "correct the file and reload again",
        )
        return None
    if reload.waiting:
        log.warning("settings that need a restart of the agent: %s", ", ".join(reload.waiting))
    log.info("settings reloaded from %s: %s", path, ", ".join(reload.applied) or "no change")
    return reload.config, trust
