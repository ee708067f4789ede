"""Compares two bundles, or two reports of builds."""

from pathlib import Path

from edgepack.packager.comparison.differences import compare_sides
from edgepack.packager.comparison.reading import read_compared
from edgepack.packager.comparison.result import Comparison


def compare(a: str | Path, b: str | Path) -> Comparison:
    """What differs between two bundles or reports, and what a device that holds `a` must fetch.

    It believes the manifests: verify bundles that you did not build.

    Example:
        ```python
        from edgepack.packager import compare

        comparison = compare("ocr-1.2.0.edgepack", "ocr-1.3.0.edgepack")
        print(comparison.equal_for_devices, [variant.name for variant in comparison.variants])
        ```

    Args:
        a, b: Bundles (archive or folder), or `report.json` files; a report knows nothing of single
            nodes and chunks.

    Returns:
        The differences; variants and files are matched by name.

    Raises:
        BundleError: One of them is neither, or is damaged.
    """
    return compare_sides(read_compared(Path(a)), read_compared(Path(b)))
