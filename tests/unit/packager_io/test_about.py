"""A user's facts about a model, and facts in its own files."""

from pathlib import Path

import pytest

from edgepack.errors import BuildError
from edgepack.packager.config.build_file import read_config
from edgepack.packager.source.stated_facts import (
    StatedFacts,
    combine,
    read_metadata,
    read_model_card,
)
from tests.unit.packager_io.models import small_cnn


def _read(folder: Path, text: str) -> Path:
    path = folder / "edgepack.toml"
    path.write_text(text)
    return path


def test_licenses_are_spelled_as_spdx_does(tmp_path: Path) -> None:
    text = '[about]\nlicense = "apache-2.0 or mit"\n'
    text += '[datasets.faces]\nused_for = "training"\nlicense = "cc-by-4.0"\n'
    config = read_config(_read(tmp_path, text))
    assert config.about.license == "Apache-2.0 OR MIT"
    assert config.datasets["faces"].license == "CC-BY-4.0"


@pytest.mark.parametrize(
    ("text", "problem", "place"),
    [
        ('[about]\nlicense = "Apache 2"', "not an SPDX license expression", "about.license"),
        (
            '[about]\nreferences = { website = "example.com" }',
            "is not a URL",
            "about.references.website",
        ),
        ('[about]\nreferences = { blog = "https://a.b" }', "not a kind of reference", "about.ref"),
        ('[about]\nidentifier = "meters"', "not a package URL", "about.identifier"),
        ('[about]\nlicence = "MIT"', "unknown key 'licence'", "about.licence"),
        ("[about]\nauthors = 3", "must be a list", "about.authors"),
        ('[datasets.a]\nused_for = "testing"', "allowed are: training", "datasets.a.used_for"),
        ('[datasets.a]\nlicense = "MIT"', "lacks 'used_for'", "datasets.a"),
        (
            '[datasets.a]\nused_for = "training"\nsha256 = "12"',
            "not a SHA-256",
            "datasets.a.sha256",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, text: str, problem: str, place: str
) -> None:
    with pytest.raises(BuildError) as caught:
        read_config(_read(tmp_path, text))
    assert problem in caught.value.problem
    assert place in (caught.value.found_in or "")


def test_the_metadata_of_an_onnx_file_are_read() -> None:
    model = small_cnn()
    model.producer_name, model.producer_version = "pytorch", "2.9.0"
    for key, value in (("author", "Ultra\x1b[2J"), ("license", "AGPL-3.0"), ("task", "detect")):
        model.metadata_props.add(key=key, value=value)
    stated = read_metadata(model)
    assert (stated.license, stated.task, stated.exporter) == ("AGPL-3.0", "detect", "pytorch 2.9.0")
    assert stated.authors == (r"Ultra\x1b[2J",)


def test_the_head_of_a_model_card_is_read(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        "---\nlicense: other\nlicense_name: llama3\ndatasets:\n- imagenet-1k\n- 3\n"
        "pipeline_tag: image-classification\nbase_model: google/vit\n---\n# A model\n"
    )
    assert read_model_card(tmp_path) == StatedFacts(
        license="llama3",
        task="image-classification",
        datasets=("imagenet-1k", "3"),
        base_models=("google/vit",),
    )


@pytest.mark.parametrize("text", ["", "---\n", "---\n: {[\n---\n", "---\n- a\n---\n", "# A model"])
def test_a_model_card_without_a_head_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    assert read_model_card(tmp_path) == StatedFacts()
    assert read_model_card(tmp_path / "nowhere") == StatedFacts()


def test_each_fact_comes_from_the_first_that_has_it() -> None:
    card, file = StatedFacts(license="MIT"), StatedFacts(license="BSD", exporter="pytorch")
    assert combine(card, file) == StatedFacts(license="MIT", exporter="pytorch")
