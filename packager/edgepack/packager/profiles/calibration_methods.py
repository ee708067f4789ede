"""Names of calibration methods: how the values that were observed become a range.

`minmax` covers every value, `percentile-P` leaves the rest outside, `mse` loses the least squared
error, `entropy` the least information. For powers of two, AMD's tools have other names:
`nonoverflow` is the smallest scale that covers every value, `minmse` the scale with the least
squared error.
"""

from collections.abc import Mapping

PERCENTILE_PREFIX = "percentile-"
POWER_OF_TWO_METHODS: Mapping[str, str] = {"nonoverflow": "minmax", "minmse": "mse"}
"""Methods for power-of-two scales only, with what they are for any scale."""


def is_known_method(name: str) -> bool:
    """Return True if `ranges` in a profile may name this method."""
    plain = ("minmax", "mse", "entropy")
    return name in (*plain, *POWER_OF_TWO_METHODS) or percentile_of(name) is not None


def percentile_of(name: str) -> float | None:
    """Return the P of `percentile-P`; None for other methods and for a P outside 50…100."""
    if not name.startswith(PERCENTILE_PREFIX):
        return None
    try:
        value = float(name.removeprefix(PERCENTILE_PREFIX))
    except ValueError:
        return None
    return value if 50.0 < value < 100.0 else None


def needs_histogram(method: str) -> bool:
    """Return True if a method looks at more than the least and the greatest value."""
    return POWER_OF_TWO_METHODS.get(method, method) != "minmax"
