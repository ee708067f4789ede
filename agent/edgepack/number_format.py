"""Numbers as text for people, the same in the summary and in the report."""


def format_bytes(size: int) -> str:
    """Return a size: `849 B`, `12.3 KB`, `6.80 MB`; decimal units, three digits."""
    value, unit = float(size), "B"
    for larger in ("KB", "MB", "GB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    if unit == "B":
        return f"{size} B"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def format_round_bytes(size: float) -> str:
    """Return a tick of an axis: `0`, `250 KB`, `1.5 MB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size:g}"


def format_percent(share: float) -> str:
    """Return a share: `22.4 %`, `0.31 %`, `0.002 %`; never 0 for a positive share."""
    percent = 100.0 * share
    if percent >= 100:
        return f"{percent:,.0f} %"
    if percent >= 1:
        return f"{percent:.{2 if percent < 10 else 1}f} %"
    return f"{percent:.3g} %" if percent >= 0.001 or percent == 0 else "below 0.001 %"


def format_milliseconds(latency_ms: float) -> str:
    """Return three digits or so, e.g. `0.412 ms`, `2.31 ms`, `45.1 ms`."""
    return f"{latency_ms:.{3 if latency_ms < 1 else 2 if latency_ms < 10 else 1}f} ms"


def format_size_change(size: int, reference: int) -> str:
    """Return a change of size in words: `3.8× smaller`, `same size`, `1.2× larger`."""
    if not size or abs(size - reference) < 0.02 * reference:
        return "same size"
    if size < reference:
        return f"{reference / size:.{2 if reference < 1.2 * size else 1}f}× smaller"
    return f"{size / reference:.{2 if size < 1.2 * reference else 1}f}× larger"


def format_metric(value: float) -> str:
    """Return four decimals, never a rounded-up 1.0000; six digits from 100 on (a user's metric)."""
    if abs(value) >= 100:
        return f"{value:,.6g}"
    text = f"{value:z.4f}"
    return "0.9999+" if text == "1.0000" and value < 1 else text


def format_latency(latency_ms: float, float_latency_ms: float | None) -> str:
    """Return a latency, `2.31 ms (1.90×)`: the median, and the speedup against the float model."""
    text = format_milliseconds(latency_ms)
    if float_latency_ms:
        text += f" ({float_latency_ms / latency_ms:.2f}×)"
    return text
