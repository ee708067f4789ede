"""Settings of a rollout that make no sense are refused before anything else is looked at."""

from edgepack.errors import FleetError
from edgepack.fleet.documents.gates import BY_NAME
from edgepack.fleet.documents.rollouts import RolloutSettings
from edgepack.fleet.rollouts.windows import parse_window
from edgepack.wire.messages import MAX_SOAK_S

MAX_SAMPLE = 1_000_000
DAY_S = 24 * 3600.0
MAX_DEADLINE_S = 366 * DAY_S
MAX_INFERENCES = 1_000_000_000
MAX_THRESHOLD = 1_000_000
MAX_MOMENT = 2.0**33


def check_numbers(request: RolloutSettings) -> None:
    """Reject settings that make no sense.

    Raises:
        FleetError: They do not.
    """
    problem = remedy = ""
    if not 0 <= request.max_failed_share <= 1:
        problem, remedy = "the greatest share of failures is 0% to 100%", "--max-failures 10%"
    elif not 1 <= request.min_sample <= MAX_SAMPLE:
        problem = f"a sample has 1 to {MAX_SAMPLE:,} devices"
        remedy = "--min-sample 5"
    elif not 0 <= request.soak_s <= MAX_SOAK_S:
        problem = f"a soak takes 0 to {MAX_SOAK_S:,.0f} seconds ({MAX_SOAK_S / DAY_S:g} days)"
        remedy = "--soak 60"
    elif request.deadline_s > MAX_DEADLINE_S:
        problem = f"a deadline is at most {MAX_DEADLINE_S:,.0f} seconds off"
        remedy = f"--deadline {MAX_DEADLINE_S:.0f}"
    elif not 0 <= request.min_inferences <= MAX_INFERENCES:
        problem = f"a soak can ask for 0 to {MAX_INFERENCES:,} inferences"
        remedy = "--min-inferences 100"
    elif request.deadline_s <= request.soak_s:
        problem = f"no device can soak {request.soak_s:g} s within {request.deadline_s:g} s"
        remedy = f"--deadline {request.soak_s * 2 + 600:g}"
    elif not 0 <= request.evidence_s <= MAX_DEADLINE_S:
        problem = f"measurements are waited for 0 to {MAX_DEADLINE_S:,.0f} seconds"
        remedy = "--evidence-wait 60"
    elif not 0 <= request.max_per_site <= MAX_SAMPLE:
        problem = f"at a site 1 to {MAX_SAMPLE:,} devices may be at it at once; 0 sets no bound"
        remedy = "--max-per-site 2"
    elif request.not_before is not None and not 0 <= request.not_before <= MAX_MOMENT:
        problem, remedy = "that is not a time to start at", "--not-before 2030-01-31T02:00"
    if request.window:
        parse_window(request.window)
    for name, threshold in request.gates.items():
        gate = BY_NAME.get(name)
        if gate is None:
            problem, remedy = f"there is no gate {name[:40]!r}", "one of " + ", ".join(BY_NAME)
        elif threshold is not None and not 0 <= threshold <= MAX_THRESHOLD:
            problem = f"gate {name} cannot let {threshold:g} pass"
            remedy = f"--gate {name}={gate.threshold:g}"
        elif threshold is not None and gate.comparison == "ratio" and threshold < 1:
            problem = f"gate {name} is a ratio to the release before: 1 is as it was"
            remedy = f"--gate {name}={gate.threshold:g}"
    if problem:
        raise FleetError(problem, remedy=remedy)
