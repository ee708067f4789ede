"""`edgepack profiles show` tells a person what a profile does, without its TOML."""

import re

import pytest
from click.testing import CliRunner

from edgepack.packager.cli.profiles import profiles
from edgepack.packager.profiles.reading import list_profiles, load_profile


def _shown(name: str) -> str:
    done = CliRunner().invoke(profiles, ["show", name], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


def _said(name: str) -> str:
    """What is shown, without the line breaks that a terminal's width makes."""
    return " ".join(_shown(name).split())


@pytest.mark.parametrize("name", list_profiles())
def test_every_shipped_profile_fits_a_terminal_and_tells_each_pass_in_order(name: str) -> None:
    shown = _shown(name)
    assert max(map(len, shown.splitlines())) <= 80
    recipe = shown.partition("in this order\n")[2].partition("\n\n")[0]
    labels = re.findall(r"^  (\w+)", recipe, re.MULTILINE)
    passes = [str(entry.__struct_config__.tag) for entry in load_profile(name).passes]
    assert labels == [*passes, "compiled"]
    assert not re.search(r"[\[\]{}]|\b(None|False|True)\b|', '", recipe), "words, no settings"


def test_a_quantization_is_told_by_its_types_ranges_and_what_may_stay_float() -> None:
    said = _said("qnn-htp")
    for words in (
        "Quantizes every operator that has a quantized form, but for Cast, LSTM, GRU, RNN.",
        "Activations: uint16. Weights: uint8; int8 with a scale a channel in Conv, ConvTranspose.",
        "Ranges from the samples by minmax, then percentile-99.99, then mse: the first that is",
        "Up to 25% of these nodes may stay float.",
        "takes 50% of the nodes or more.",
        "The build is refused, with the numbers and what to try.",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpu", "published where the quantized one is not 5% faster, or no other holds the"),
        ("cpu-int4", "get weights of 4 bits. Each 32 of them share a scale."),
        ("cpu-int4", "Nodes that cost too much get weights of 8 bits; up to 50%"),
        ("tensorrt-fp16", "Every operator that has a form of 16-bit floats gets it."),
        ("qnn-htp-v73", "Here, ahead of time, for v73 (SC8380XP)."),
        ("vitisai-bf16", "On the device, whose provider lowers the precision by itself."),
        ("vitisai-xint8", "Looked at in its place: vitisai-a8w8, vitisai-bf16."),
    ],
)
def test_what_is_particular_to_a_profile_is_said(name: str, words: str) -> None:
    assert words in _said(name)
