"""The examples for Greengrass and Flight Control: keys of their formats, commands of the agent.

Neither system runs here. The keys are those of AWS's recipe reference and of Flight Control's
guide to application packages.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import yaml

from edgepack.agent.cli import cli
from edgepack.agent.cli.other_fleet import SYSTEMS

FOLDER = Path(__file__).parents[3] / "examples" / "other_fleets"
RECIPE_KEYS = {
    *("RecipeFormatVersion", "ComponentName", "ComponentVersion", "ComponentDescription"),
    *("ComponentPublisher", "Manifests"),
}


def check_command(words: list[str]) -> None:
    command = cli.get_command(context := click.Context(cli), words[0])
    assert command is not None, words
    command.make_parser(click.Context(command, parent=context)).parse_args(words[1:])


def read(path: str) -> Any:
    return yaml.safe_load((FOLDER / path).read_text())


def test_the_greengrass_recipe_has_the_keys_of_the_format() -> None:
    recipe = read("greengrass/recipe.yaml")
    assert recipe.keys() == RECIPE_KEYS
    assert recipe["RecipeFormatVersion"] == "2020-01-25"
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", recipe["ComponentName"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", recipe["ComponentVersion"])
    (manifest,) = recipe["Manifests"]
    assert manifest.keys() == {"Platform", "Lifecycle", "Artifacts"}
    install = manifest["Lifecycle"]["Install"]
    assert install.keys() == {"RequiresPrivilege", "Timeout", "Script"}
    (artifact,) = manifest["Artifacts"]
    assert artifact["URI"].startswith("s3://")
    program, *words = shlex.split(install["Script"])
    assert program == "edgepack-agent"
    assert words[:3] == ["other-fleet", "greengrass", "--"]
    assert Path(words[3]).name == Path(artifact["URI"]).name
    assert words[1] in SYSTEMS
    check_command(words)


def test_the_flight_control_application_is_a_compose_package_of_the_agents_image() -> None:
    lines = (FOLDER / "flight_control/Containerfile").read_text().splitlines()[1:]
    assert lines == [
        "FROM scratch",
        "COPY podman-compose.yaml /podman-compose.yaml",
        'LABEL appType="compose"',
    ]
    services = read("flight_control/podman-compose.yaml")["services"]
    base = (FOLDER / "flight_control/model.Containerfile").read_text()
    assert f"FROM {services['agent']['image']}\n" in base
    assert services["model"]["command"][1] in base
    assert services["model"]["volumes"] == services["agent"]["volumes"]
    for service in services.values():
        check_command(service["command"])
    (application,) = read("flight_control/device.yaml")["spec"]["applications"]
    assert application["appType"] == "compose"
    assert application["image"].startswith("registry.example/")
