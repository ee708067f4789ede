"""Tighter budgets are proposed if real devices lost more than a gate's threshold."""

import tomllib

import pytest

from edgepack.bundle.feedback import Evidence
from edgepack.packager.pipeline.fleet_feedback import propose_budgets
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.reports.report import BudgetProposal

PROFILES = [load_profile("cpu"), load_profile("qnn-htp")]


def entry(**said: object) -> Evidence:
    told: dict[str, object] = {
        "version": "1.0.0",
        "digest": "aa",
        "variant": "cpu",
        "provider": "CPUExecutionProvider",
        "hardware_class": "pi-5",
        "metric": "top1_agreement",
        "budget": 0.98,
        "probed": 8,
        "right": 8,
        **said,
    }
    return Evidence(**told)  # type: ignore[arg-type]


def shadow(agreed: int, most: float | None = 0.975, **said: object) -> Evidence:
    """Return evidence of 20 devices, of which `agreed` of 1,000 shadow inferences agreed."""
    mean = {"shadow_devices": 20, "shadow_mean": agreed / 1000, "shadow_most": most}
    return entry(shadow_count=1000, shadow_agreed=agreed, **{**mean, **said})


def golden(metric: str, budget: float, error: float, **said: object) -> Evidence:
    measured: dict[str, object] = {"right": 5, "worst_nrmse": error, **said}
    return entry(metric=metric, budget=budget, **measured)


def proposed(*evidence: Evidence) -> BudgetProposal | None:
    found = propose_budgets(PROFILES, evidence)
    assert len(found) <= 1
    return found[0] if found else None


def test_shadow_inferences_that_disagree_too_often_tighten_as_much_as_the_budget_was_missed() -> (
    None
):
    found = proposed(shadow(950))
    assert found is not None
    assert (found.profile, found.task, found.keep) == ("cpu", "classification", 0.996)
    assert found.because == (
        "on pi-5, 95.0% of shadow inferences agreed (mean of 20 devices) in 1.0.0; its build let "
        "top1_agreement 0.98 pass"
    )
    assert tomllib.loads(f"[gates.accuracy]\n{found.line}") == {
        "gates": {"accuracy": {"classification": {"keep": 0.996}}}
    }


@pytest.mark.parametrize(
    ("metric", "budget", "error", "keep"),
    [
        ("explained_variance", 0.98, 0.2, 0.995),
        ("explained_variance (rows of y)", 0.98, 1e300, 0.9998),
    ],
)
def test_golden_outputs_that_are_wrong_tighten_the_budget_of_numbers(
    metric: str, budget: float, error: float, keep: float
) -> None:
    found = proposed(golden(metric, budget, error))
    assert found is not None
    assert found.task == "any"
    assert found.keep == pytest.approx(keep)
    assert "golden outputs were wrong on 3 of 8 devices" in found.because


@pytest.mark.parametrize(
    "evidence",
    [
        entry(),
        shadow(985, 0.99),
        shadow(970, 0.98),
        shadow(950, None),
        shadow(950, is_simulator=True),
        shadow(950, variant="other"),
        shadow(950, budget=None),
        shadow(950, metric="token_agreement"),
        shadow(950, budget=1.5),
        golden("explained_variance", 0.98, 0.2, right=6),
        golden("explained_variance", 0.98, 0.05),
        golden("explained_variance", 0.98, -1.0),
        golden("top1_agreement", 0.98, 0.5),
    ],
    ids=[
        "nothing measured",
        "as good as asked",
        "as good as asked, perhaps",
        "few devices",
        "a simulator",
        "another profile",
        "no budget known",
        "another unit",
        "no budget that could be",
        "too few devices",
        "wrong, but within the budget",
        "no error that could be",
        "numbers say nothing of decisions",
    ],
)
def test_without_evidence_nothing_is_proposed(evidence: Evidence) -> None:
    assert proposed(evidence) is None


def test_a_newer_release_that_holds_its_budget_ends_the_proposal() -> None:
    newer = shadow(999, 1.0, version="1.1.0", digest="bb", budget=0.992)
    assert proposed(newer, shadow(950)) is None


def test_what_a_profile_asks_for_already_is_not_proposed() -> None:
    assert proposed(shadow(950, budget=0.9)) is None, "0.98 is more than what follows from it"


def test_of_several_kinds_of_hardware_the_worst_counts() -> None:
    found = proposed(shadow(960), shadow(900, hardware_class="pi-4"))
    assert found is not None
    assert found.because.startswith("on pi-4, 90.0% of shadow inferences")
