"""Numbers with their nouns, places of errors."""

import pytest

from edgepack.errors import BuildError, located
from edgepack.text import counted


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (counted(0, "node"), "0 nodes"),
        (counted(1, "node"), "1 node"),
        (counted(12, "node"), "12 nodes"),
    ],
)
def test_the_noun_fits_its_number(words: str, expected: str) -> None:
    assert words == expected


@pytest.mark.parametrize(
    ("place", "inner", "wanted"),
    [
        ("m.onnx", None, "m.onnx"),
        ("m.onnx", "node 'a'", "m.onnx, node 'a'"),
        ("", "outputs.y", "outputs.y"),
    ],
)
def test_a_place_is_put_before_the_places_of_errors(
    place: str, inner: str | None, wanted: str
) -> None:
    with pytest.raises(BuildError) as refused, located(place):
        raise BuildError("wrong", found_in=inner)
    assert refused.value.found_in == wanted


def test_a_place_is_not_put_before_places_elsewhere() -> None:
    with pytest.raises(BuildError) as refused, located("edgepack.toml", ("inputs.", "outputs")):
        raise BuildError("wrong", found_in="samples/1.npz")
    assert refused.value.found_in == "samples/1.npz"
