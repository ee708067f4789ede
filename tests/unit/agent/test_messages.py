"""Texts of `edgepack-agent` for users."""

import json

from click.testing import CliRunner

from edgepack.agent.cli import cli
from edgepack.agent.cli.describe import describe_facts
from tests.unit.agent_runtime.examples import make_facts


def test_providers_stand_in_columns_and_a_simulated_one_is_called_that() -> None:
    lines = describe_facts(make_facts()).splitlines()
    assert lines[-3:] == [
        "  yes        CPUExecutionProvider      cpu  built in",
        "  simulated  QNNExecutionProvider      npu  plug-in",
        "  no         VitisAIExecutionProvider       not here",
    ]


def test_json_is_indented_with_its_keys_as_they_are_declared() -> None:
    done = CliRunner().invoke(cli, ["providers", "--json"])
    assert done.exit_code == 0
    assert done.stdout == json.dumps(json.loads(done.stdout), indent=2) + "\n"
    assert list(json.loads(done.stdout))[:2] == ["arch", "cpu_model"]
