"""What a model that comes quantized is called."""

import pytest

from edgepack.packager.graph.source_quantization import SourceQuantization


@pytest.mark.parametrize(
    ("activations", "weights", "precision"),
    [
        (("uint8",), ("int8",), "a8w8"),
        (("uint16",), ("uint8",), "a16w8"),
        ((), ("int4",), "w4"),
        ((), ("uint4",), "w4"),
    ],
)
def test_its_precision_counts_the_bits_of_its_types(
    activations: tuple[str, ...], weights: tuple[str, ...], precision: str
) -> None:
    own = SourceQuantization(
        activations=activations,
        weights=weights,
        is_per_channel=False,
        other_scales=(),
        operators=(),
    )
    assert own.precision == precision
