"""Rollout settings are declared once: bounds, options, form and schema follow the declaration."""

from typing import Any

import click
import msgspec
import pytest

from edgepack.fleet.commands.rollout import rollback, start
from edgepack.fleet.documents.rollouts import SETTINGS, RolloutRequest, RolloutSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("soak_s", -1.0),
        ("soak_s", 1e9),
        ("min_inferences", -1),
        ("min_inferences", 10**12),
        ("max_failed_share", 1.5),
        ("min_sample", 0),
        ("min_sample", 10**15),
        ("not_before", -1.0),
        ("max_per_site", -1),
        ("on_breach", "shrug"),
    ],
)
def test_a_request_beyond_the_declared_bounds_is_rejected(name: str, value: object) -> None:
    request = {"digest": "0" * 64, "selector": {"kind": "all"}, name: value}
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(msgspec.json.encode(request), type=RolloutRequest)


def test_every_setting_is_an_option_and_a_described_key_of_the_schema() -> None:
    assert {*SETTINGS, "gates"} == set(RolloutSettings.__struct_fields__)
    options = {each.name: each for each in start.params if isinstance(each, click.Option)}
    schema: Any = msgspec.json.schema(RolloutSettings)["$defs"]["RolloutSettings"]["properties"]
    for name, setting in SETTINGS.items():
        assert options[name].opts == [setting.option]
        assert setting.help in (options[name].help or "")
        assert schema[name]["description"] == setting.help
    assert "supersede" not in {each.name for each in rollback.params}


def test_options_have_the_declared_defaults_and_bounds() -> None:
    context = start.make_context("start", ["model", "--all"])
    given = {name: context.params[name] for name in SETTINGS if context.params[name] is not None}
    assert RolloutSettings(**given) == RolloutSettings()
    for words in (["--soak", "-1"], ["--max-failures", "150%"], ["--soak", "nan"]):
        with pytest.raises(click.BadParameter) as error:
            start.make_context("start", ["model", "--all", *words])
        assert words[0] in error.value.format_message()


def test_the_gate_shadow_lets_pass_what_a_release_is_meant_to_differ() -> None:
    assert RolloutSettings().thresholds == {}
    assert RolloutSettings(shadow=True).thresholds == {}
    assert RolloutSettings(shadow=True, shadow_differs=0.03).thresholds == {}, "it lets 5 % pass"
    assert RolloutSettings(shadow=True, shadow_differs=0.1).thresholds == {"shadow": 0.1}
    assert RolloutSettings(shadow=True, shadow_differs=1.0).thresholds == {"shadow": None}
    given = RolloutSettings(shadow=True, shadow_differs=1.0, gates={"shadow": 0.2, "p95": None})
    assert given.thresholds == given.gates
