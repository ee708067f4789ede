"""Symptoms of degraded devices: labels of a metric, so a device cannot make up more of them."""

import pytest

from edgepack.fleet.database.standing import OTHER, symptom_of
from edgepack.wire.reports import Reported, ReportedModel, Watched


@pytest.mark.parametrize(
    ("watch", "symptom"),
    [
        (None, ""),
        (Watched(), ""),
        (Watched(state="DEGRADED", symptom="slow"), "slow"),
        (Watched(state="HEALING", symptom="not_finite"), "not_finite"),
        (Watched(state="DEGRADED", symptom="made up 1"), OTHER),
        (Watched(state="DEGRADED"), OTHER),
    ],
)
def test_symptoms_are_of_the_watch_or_other(watch: Watched | None, symptom: str) -> None:
    calm = ReportedModel(state="COMMITTED", watch=Watched())
    models = {"a": calm, "b": ReportedModel(state="COMMITTED", watch=watch)}
    assert symptom_of(Reported(online=True, at=1.0, boot="b", models=models)) == symptom
