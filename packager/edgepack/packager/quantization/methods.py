"""Names of the calibration methods: how observed values become a range."""

PERCENTILE_PREFIX = "percentile-"


def is_known_method(name: str) -> bool:
    """Whether `ranges` in a profile may name this method."""
    return name in ("minmax", "mse", "entropy") or percentile_of(name) is not None


def percentile_of(name: str) -> float | None:
    """The P of `percentile-P`; None for other methods and for a P outside 50…100."""
    if not name.startswith(PERCENTILE_PREFIX):
        return None
    try:
        value = float(name.removeprefix(PERCENTILE_PREFIX))
    except ValueError:
        return None
    return value if 50.0 < value < 100.0 else None
