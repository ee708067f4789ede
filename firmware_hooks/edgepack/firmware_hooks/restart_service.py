"""Hook: restart a systemd service after the switch, and check that the service stays up.

    python -P -m edgepack.firmware_hooks.restart_service --unit camera.service

For applications that load the model once at their start instead of through `open_model`. If the
service does not come up with the new model, the hook refuses and the agent rolls back; the same
hook at `rolled_back`, after, restarts the service with the old model.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from edgepack.firmware_hooks.answer import (
    GO,
    REFUSE,
    Answer,
    CommandError,
    HookParser,
    answer_with,
    last_words,
    run_command,
)

_POLL_S = 0.1


def parser() -> HookParser:
    """Return the hook's settings."""
    made = HookParser("restart_service", __doc__)
    made.add_argument("--unit", required=True, help="systemd unit, e.g. camera.service")
    made.add_argument(
        "--timeout-s",
        type=float,
        default=30.0,
        help="until the unit is active; less than the agent's hooks.timeout_s; default: 30",
    )
    made.add_argument(
        "--settle-s",
        type=float,
        default=2.0,
        help="until the unit must still be active; default: 2",
    )
    made.add_argument("--systemctl", default="systemctl", help="default: systemctl")
    return made


def decide(settings: argparse.Namespace) -> Answer:
    """Restart, wait for "active", and look again after the settle time."""
    deadline = time.monotonic() + settings.timeout_s
    try:
        done = run_command(
            [settings.systemctl, "restart", settings.unit], timeout_s=settings.timeout_s
        )
        if done.returncode != 0:
            return Answer(REFUSE, f"{settings.unit} did not restart: {last_words(done)}")
        while (state := _state(settings)) in ("activating", "reloading"):
            if time.monotonic() >= deadline:
                return Answer(
                    REFUSE,
                    f"{settings.unit} is still {state} {settings.timeout_s:g} s after its restart",
                )
            time.sleep(_POLL_S)
        if state == "active":
            time.sleep(settings.settle_s)
            state = _state(settings)
    except CommandError as error:
        return Answer(REFUSE, f"{settings.unit} could not be restarted: {error}")
    if state != "active":
        return Answer(REFUSE, f"{settings.unit} is {state} after its restart")
    return Answer(GO, f"{settings.unit} was restarted and is active")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the hook."""
    return answer_with(parser(), decide, arguments)


def _state(settings: argparse.Namespace) -> str:
    done = run_command(
        [settings.systemctl, "is-active", settings.unit], timeout_s=settings.timeout_s
    )
    return done.stdout.strip() or last_words(done)


if __name__ == "__main__":
    sys.exit(main())
