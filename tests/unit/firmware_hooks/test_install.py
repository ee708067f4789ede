"""Installation of a reference hook, and its run by the agent."""

from pathlib import Path

import pytest

from edgepack.agent.hooks.runner import STAGES as AGENT_STAGES
from edgepack.agent.hooks.runner import WHENS as AGENT_WHENS
from edgepack.agent.hooks.runner import run_hooks
from edgepack.firmware_hooks.__main__ import main
from edgepack.firmware_hooks.install import HOOKS, STAGES, WHENS, hook_parser


def test_the_stages_are_those_of_the_agent() -> None:
    assert (STAGES, WHENS) == (AGENT_STAGES, AGENT_WHENS)


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_explains_itself_with_an_example(name: str) -> None:
    assert f"python -P -m edgepack.firmware_hooks.{name} --" in hook_parser(name).format_help()


def test_an_installed_hook_runs_as_the_agent_runs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zone = tmp_path / "sys of test/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("npu\n")
    (zone / "temp").write_text("91000\n")
    folder = tmp_path / "hooks"
    arguments = ["thermal_guard", "--stage=staged", "--when=after", f"--folder={folder}"]
    settings = ["--setting=limit-c=80", f"--setting=sysfs={tmp_path / 'sys of test'}"]
    assert main(["install", *arguments, *settings, "--order=10"]) == 0
    hook = folder / "staged.after.d" / "10-thermal_guard"
    assert capsys.readouterr().out == f"{hook}\n"
    verdict = run_hooks("staged", "after", [folder], {}, 60)
    assert verdict.verdict == "retry"
    assert verdict.because == (
        "hook 10-thermal_guard asks to try again later: "
        "thermal_zone0 (npu) has 91.0 °C, above 80 °C"
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["limit-c=hot"], "argument --limit-c: invalid float value: 'hot'"),
        ([], "the following arguments are required: --limit-c"),
        (["limit-c=80", "limits=3"], "unrecognized arguments: --limits=3"),
        (["=3"], "a setting is written as key=value, not '=3'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], problem: str
) -> None:
    words = [word for setting in settings for word in ("--setting", setting)]
    arguments = ["thermal_guard", "--stage=staged", "--when=after", f"--folder={tmp_path}"]
    assert main(["install", *arguments, *words]) == 1
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_hooks_are_listed_with_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(HOOKS)
    assert "restart a systemd service" in listed[3]
