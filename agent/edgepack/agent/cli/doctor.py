"""The command that examines the device."""

import sys
from contextlib import suppress
from pathlib import Path

import click

from edgepack.agent.cli.options import config_option, json_option, state_dir_option
from edgepack.json_text import json_text


@click.command()
@config_option
@state_dir_option
@json_option
def doctor(config_path: Path, state_dir: Path | None, as_json: bool) -> None:
    """Examine the device: each line has a fact, and a remedy if something is wrong.

    Nothing changes, and the agent need not run. Root sees the device as the agent's user does;
    other users are told what they cannot see. Exit code 1 if anything is wrong.

    \b
    Example:
      sudo edgepack-agent doctor
    """
    from edgepack.agent.cli.owner import become_owner
    from edgepack.agent.config import read_config
    from edgepack.agent.doctor.examination import examine
    from edgepack.agent.doctor.unit import read_unit
    from edgepack.agent.state.models import DEFAULT_STATE_DIR
    from edgepack.errors import EdgepackError
    from edgepack.text import printable

    place = state_dir or DEFAULT_STATE_DIR
    if state_dir is None:
        with suppress(EdgepackError):  # The examination reports the problem.
            place = Path(read_config(config_path).state_dir)
    unit = read_unit()
    become_owner(place)
    findings = []
    for one in examine(config_path, state_dir, unit):
        findings.append(one)
        if not as_json:
            click.echo(printable(f"{one.verdict:8} {one.subject:12} {one.fact}"))
            if one.remedy:
                click.echo(printable(f"{'':21} try: {one.remedy}"))
    if as_json:
        click.echo(json_text(findings))
    sys.exit(any(one.verdict == "wrong" for one in findings))
