"""The dashboard's form of a new rollout: words become settings, and nonsense is named."""

import pytest

from edgepack.errors import FleetError
from edgepack.fleet.dashboard.start_form import (
    FIELDS,
    fields_of,
    fill_in,
    read_selector,
    read_settings,
)
from edgepack.fleet.documents.rollouts import RolloutSettings


def test_an_untouched_form_means_the_defaults() -> None:
    assert read_settings(fill_in({})) == RolloutSettings()


def test_every_setting_of_a_rollout_is_on_the_form() -> None:
    shown = {field.name for part in ("", "pace", "judgement") for field in fields_of(part)}
    assert shown == set(FIELDS)
    assert shown | {"gates"} == set(RolloutSettings.__struct_fields__)


def test_words_become_settings() -> None:
    given = {
        "waves": "5,100%",
        "max_failed_share": "2.5",
        "not_before": "2030-01-31T02:00",
        "approve_waves": "on",
        "split_by": "hardware",
        "on_breach": "rollback",
        "window": "mon-fri 02:00-05:00",
        "gate_p95": "1.3",
        "gate_drift": "off",
        "max_per_site": "",
    }
    assert read_settings(fill_in(given)) == RolloutSettings(
        waves="5,100%",
        max_failed_share=0.025,
        not_before=1896055200.0,
        approve_waves=True,
        split_by="hardware",
        on_breach="rollback",
        window="mon-fri 02:00-05:00",
        gates={"p95": 1.3, "drift": None},
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"soak_s": "soon"}, "Soak, seconds .*soon"),
        ({"soak_s": "-1"}, "Soak, seconds .*>= 0"),
        ({"min_sample": "0"}, "Smallest sample .*>= 1"),
        ({"max_failed_share": "some"}, "Failures let pass, %: 'some' makes no sense"),
        ({"not_before": "2030-13-01T00:00"}, "Not before: '2030-13-01T00:00' makes no sense"),
        ({"on_breach": "shrug"}, "On a breach .*pause, abort, rollback"),
        ({"gate_p95": "-1"}, "'-1' is not a threshold of the gate p95"),
        ({"gate_p95": "nan"}, "'nan' is not a threshold of the gate p95"),
        ({"gate_p95": "1e999"}, "'1e999' is not a threshold of the gate p95"),
    ],
)
def test_a_word_that_means_nothing_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(FleetError, match=said):
        read_settings(fill_in(given))


def test_what_is_no_field_of_the_form_is_passed_over() -> None:
    assert "form_token" not in fill_in({"form_token": "x"})


def test_somebody_must_be_named() -> None:
    with pytest.raises(FleetError, match="name the devices"):
        read_selector(fill_in({}))
    assert read_selector(fill_in({"to": "group", "group": "g"})).group == "g"
