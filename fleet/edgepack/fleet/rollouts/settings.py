"""Checks across several settings of a rollout; the types have the bounds of each setting."""

from edgepack.errors import FleetError
from edgepack.fleet.documents.gates import BY_NAME
from edgepack.fleet.documents.rollouts import RolloutSettings
from edgepack.fleet.rollouts.windows import parse_window

MAX_THRESHOLD = 1_000_000


def check_settings(settings: RolloutSettings) -> None:
    """Reject settings that contradict each other.

    Raises:
        FleetError: The deadline ends before the soak, the window is none, a share of differing
            answers is given without shadow mode, or a gate is unknown or has an impossible
            threshold.
    """
    if settings.deadline_s <= settings.soak_s:
        raise FleetError(
            f"no device can soak {settings.soak_s:g} s within {settings.deadline_s:g} s",
            remedy=f"--deadline {settings.soak_s * 2 + 600:g}",
        )
    if settings.shadow_differs != RolloutSettings().shadow_differs and not settings.shadow:
        raise FleetError("only a release in the shadow can differ", remedy="--shadow")
    if settings.window:
        parse_window(settings.window)
    for name, threshold in settings.gates.items():
        gate = BY_NAME.get(name)
        if gate is None:
            raise FleetError(
                f"there is no gate {name[:40]!r}", remedy="one of " + ", ".join(BY_NAME)
            )
        if threshold is None:
            continue
        remedy = f"--gate {name}={gate.threshold:g}"
        if not 0 <= threshold <= MAX_THRESHOLD:
            raise FleetError(f"gate {name} cannot let {threshold:g} pass", remedy=remedy)
        if gate.comparison == "ratio" and threshold < 1:
            raise FleetError(
                f"gate {name} is a ratio to the previous release: 1 is unchanged", remedy=remedy
            )
