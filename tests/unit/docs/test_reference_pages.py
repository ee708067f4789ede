"""The reference pages have exactly the keys of the described files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from edgepack.agent.config import AgentConfig, SourceConfig
from edgepack.packager.config.build_file import BuildConfig
from edgepack.packager.config.inputs import InputDeclaration
from edgepack.packager.config.outputs import DECLARABLE
from edgepack.packager.passes.workarounds.table import WORKAROUNDS
from edgepack.packager.profiles.pass_settings import Lowering, Pass
from edgepack.packager.profiles.schema import AccuracyBudget, Profile
from edgepack.packager.reports.report import Report
from edgepack.tasks.details import (
    DIVERGENCE,
    FLIP_MARGIN,
    FLIPPED_TOKENS,
    FLOAT_PERPLEXITY,
    FORCED_TOKENS,
    PERPLEXITY_RATIO,
    SAME_TEXTS,
    SAMPLES_TO_PROVE,
    TASK_KEPT,
    VALUE_LOW,
)

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def keys(*structs: Any) -> set[str]:
    return {field.encode_name for struct in structs for field in msgspec.structs.fields(struct)}


def sections(struct: Any) -> dict[str, set[str]]:
    """Return the keys of each section of a file described by a struct."""
    hints = get_type_hints(struct)
    return {
        field.encode_name: keys(section)
        for field in msgspec.structs.fields(struct)
        for section in _nested(hints[field.name])
    }


def _nested(hint: Any) -> Iterator[Any]:
    for one in (hint, *get_args(hint)):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            yield one


def documented(page: str, section: str) -> set[str]:
    """Return the code in the first column of a section's tables."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    rows = re.findall(r"^\| (`.*?) \|", parts[section], re.M)
    return {key for row in rows for key in re.findall(r"`([\w.]+)`", row)}


PROFILE = sections(Profile) | {"profile": keys(get_type_hints(Profile)["about"]) | {"extends"}}


@pytest.mark.parametrize("section", [name for name in PROFILE if name != "pass"])
def test_every_key_of_a_profile_is_documented(section: str) -> None:
    nested = {"accuracy"} if section == "gates" else set()
    assert documented("profile-keys.md", section) == PROFILE[section] - nested


def test_every_key_of_an_accuracy_budget_is_documented() -> None:
    assert documented("profile-keys.md", "gates.accuracy.TASK") == keys(AccuracyBudget)


def test_every_task_that_outputs_may_have_is_documented() -> None:
    text = (REFERENCE.parent / "how-to" / "outputs.md").read_text(encoding="utf-8")
    table = text.split("| `task` |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(DECLARABLE)


@pytest.mark.parametrize("kind", get_args(Lowering), ids=lambda kind: kind.__name__)
def test_every_setting_of_a_pass_that_lowers_is_documented(kind: Any) -> None:
    found = documented("passes.md", kind.__struct_config__.tag)
    methods = {key for key in found if re.match(r"minmax|percentile|mse|entropy|non|minmse", key)}
    assert found - methods - keys(kind) <= {"rtn", "hqq", "gptq"}
    assert keys(kind) <= found


def test_every_pass_is_documented() -> None:
    page = (REFERENCE / "passes.md").read_text(encoding="utf-8")
    for kind in get_args(Pass):
        for name in (kind.__struct_config__.tag, *keys(kind)):
            assert f"`{name}`" in page


def test_every_workaround_is_documented() -> None:
    page = (REFERENCE.parent / "targets" / "qnn-htp.md").read_text(encoding="utf-8")
    table = page.partition("| in `ops` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [row.op for row in WORKAROUNDS]


BUILD = sections(BuildConfig)


@pytest.mark.parametrize("section", ["model", "calibration", "evaluation", "build"])
def test_every_key_of_edgepack_toml_is_documented(section: str) -> None:
    assert documented("edgepack-toml.md", section) == BUILD[section]


def test_every_key_of_an_input_is_documented() -> None:
    assert documented("edgepack-toml.md", "inputs") == keys(*get_args(InputDeclaration))


def test_every_section_of_edgepack_toml_is_documented() -> None:
    for section in keys(BuildConfig):
        documented("edgepack-toml.md", section)


AGENT = sections(AgentConfig)


@pytest.mark.parametrize("section", list(AGENT))
def test_every_key_of_agent_toml_is_documented(section: str) -> None:
    assert documented("agent-toml.md", section) == AGENT[section]


def test_every_key_of_a_source_is_documented() -> None:
    assert documented("agent-toml.md", "transfer.sources") == keys(SourceConfig)


def test_every_top_key_of_agent_toml_is_documented() -> None:
    assert documented("agent-toml.md", "Top") == keys(AgentConfig) - set(AGENT)


_OF_TEXTS = (
    SAME_TEXTS,
    PERPLEXITY_RATIO,
    FLOAT_PERPLEXITY,
    DIVERGENCE,
    FORCED_TOKENS,
    FLIPPED_TOKENS,
    FLIP_MARGIN,
)


def test_the_fields_of_a_report_that_the_page_names_are_there() -> None:
    page = (REFERENCE / "report.md").read_text(encoding="utf-8")
    known = {VALUE_LOW, SAMPLES_TO_PROVE, TASK_KEPT, *_OF_TEXTS}
    waiting: list[Any] = [Report]
    while waiting:
        struct = waiting.pop()
        known |= keys(struct)
        waiting += [
            one
            for hint in get_type_hints(struct).values()
            for part in (hint, *get_args(hint))
            for one in _nested(part)
        ]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = {
        word
        for row in rows
        for code in re.findall(r"`(.+?)`", row)
        for word in re.findall(r"[a-z_]+(?!\w*\*)\b", code)
    }
    assert {word for word in named if not word.endswith("_")} <= known
