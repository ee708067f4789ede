"""The examples for containers: whole, and with commands that edgepack takes. None runs here."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from edgepack.cli import cli

FOLDER = Path(__file__).parents[3] / "examples" / "deploy"
CHART = FOLDER / "helm"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
ACTION = re.compile(r"\{\{\s*(?:required \"\w+\" )?\.Values\.(\w+)(?: \| quote)?\s*\}\}")


def compose() -> Any:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def manifests() -> Iterator[Any]:
    """Yield the chart's templates, with a word in place of each value."""
    for path in sorted((CHART / "templates").glob("*.yaml")):
        text = path.read_text()
        named = set(ACTION.findall(text))
        assert named <= VALUES.keys(), path.name
        filled = ACTION.sub("1", text)
        assert "{{" not in filled, f"{path.name}: an action that this test does not know"
        yield from yaml.safe_load_all(filled)


def commands() -> Iterator[list[str]]:
    for service in compose()["services"].values():
        if service["image"] == "edgepack":
            yield service["command"]
    for manifest in manifests():
        pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
        for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
            if "args" in container:
                yield container["args"]


@pytest.mark.parametrize("words", list(commands()), ids=lambda words: " ".join(words[:3]))
def test_edgepack_takes_each_command(words: list[str]) -> None:
    command: click.Command = cli
    context = click.Context(command)
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args([str(word) for word in words])


def test_what_a_service_mounts_and_waits_for_is_there() -> None:
    found = compose()
    for name, service in found["services"].items():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in found["volumes"] or (FOLDER / source).is_dir(), name
        assert service.get("depends_on", {}).keys() <= found["services"].keys(), name
    controllers = found["services"]["fleet"]["deploy"]["replicas"]
    setup = found["services"]["setup"]["command"]
    assert setup[setup.index("--controllers") + 1] == str(controllers)


def test_what_a_pod_mounts_and_selects_is_there() -> None:
    all_of = list(manifests())
    names = {(one["kind"], one["metadata"]["name"]) for one in all_of}
    assert len(names) == len(all_of)
    labels = []
    for one in all_of:
        pod = one.get("spec", {}).get("template")
        if pod is None:
            continue
        assert one["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        labels.append(pod["metadata"]["labels"])
        spec = pod["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        claims = {
            claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", ())
        }
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert ("PersistentVolumeClaim", claim) in names
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= volumes.keys() | claims, container["name"]
    for one in all_of:
        if one["kind"] == "Service":
            assert one["spec"]["selector"] in labels
