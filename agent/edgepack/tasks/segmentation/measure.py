"""Measure maps of classes, or of one probability, by the areas that they mark."""

from collections.abc import Sequence

from edgepack.tasks.arrays import Tensor
from edgepack.tasks.classification.measure import compare_rows, same_decisions
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.segmentation.areas import measure_areas
from edgepack.tasks.values.measure import measure_explained

IOU = Scale(metric="mean_iou", least=0.99)


def compare_maps(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the maps of one output; see `Compare`."""
    areas = measure_areas(expected, got)
    if areas is not None:
        measure = Measure(scale=IOU, value=areas.value, low=areas.low, output=output)
        return Compared(measures=(measure,), losses=areas.losses, notes=(areas.words,))
    if expected[0].dtype.kind != "f":
        pairs = zip(expected, got, strict=True)
        return compare_rows(output, [same_decisions(want, have) for want, have in pairs])
    measure, losses = measure_explained(output, expected, got)
    return Compared(measures=(measure,), losses=losses)


SEGMENTATION = ValueTask("segmentation", "its areas (mean IoU)", compare_maps)
