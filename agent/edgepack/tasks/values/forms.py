"""Forms of quantities, each with a measure beside the variance between samples."""

from collections.abc import Callable, Sequence

import msgspec

from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.contract import Measure
from edgepack.tasks.values.strict import (
    measure_columns,
    measure_peaks,
    measure_relative,
    measure_widths,
    measure_within,
)
from edgepack.tasks.values.vectors import measure_lengths


class Form(msgspec.Struct, frozen=True):
    """Measure of values that have a form.

    Attributes:
        measure: Takes an output's name, the float model's values and others, one array a sample,
            and returns the measure and the loss of each sample; None for values of another form.
        is_of_rows: Only rows are measured, see `is_row`.
        is_of_columns: Only quantities side by side are measured.
    """

    measure: Callable[[str, Sequence[Tensor], Sequence[Tensor]], tuple[Measure, Floats] | None]
    is_of_rows: bool = False
    is_of_columns: bool = False


FORMS = (
    Form(measure_lengths),
    Form(measure_peaks),
    Form(measure_within, is_of_rows=True),
    Form(measure_relative, is_of_rows=True),
    Form(measure_widths, is_of_rows=True),
    Form(measure_columns, is_of_rows=True, is_of_columns=True),
)
"""All forms that are measured beside the variance between samples."""
