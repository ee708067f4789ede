"""Whether a quantized model pays beside the float one."""

import pytest

from edgepack.packager.judging.gates import is_not_worth_it


@pytest.mark.parametrize(
    ("latency_ms", "size_share", "expected"),
    [
        (0.5, 0.3, False),
        (1.05, 0.3, False),
        (1.2, 0.3, True),
        (0.5, 0.9, False),
        (0.95, 0.9, True),
        (1.05, 0.9, True),
    ],
)
def test_a_model_that_is_hardly_smaller_must_be_clearly_faster(
    latency_ms: float, size_share: float, expected: bool
) -> None:
    assert is_not_worth_it(latency_ms, 1.0, size_share) is expected
