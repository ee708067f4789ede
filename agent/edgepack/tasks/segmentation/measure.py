"""Measure of maps of classes, or of a single probability, by the marked areas."""

from collections.abc import Sequence

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.classification.measure import compare_rows, same_decisions
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.segmentation.areas import (
    classes_of,
    foreground_level,
    is_single,
    measure_areas,
)
from edgepack.tasks.sketch import Sketch, finite_values, shares_of_classes, thin_places
from edgepack.tasks.values.measure import measure_explained

IOU = Scale(metric="mean_iou", least=0.99)


def compare_maps(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the maps of an output; see `Compare`."""
    areas = measure_areas(expected, got)
    if areas is not None:
        measure = Measure(scale=IOU, value=areas.value, low=areas.low, output=output)
        return Compared(measures=(measure,), losses=areas.losses, notes=(areas.words,))
    if expected[0].dtype.kind != "f":
        pairs = zip(expected, got, strict=True)
        return compare_rows(output, [same_decisions(want, have) for want, have in pairs])
    measure, losses = measure_explained(output, expected, got)
    return Compared(measures=(measure,), losses=losses)


def sketch_areas(part: TaskOutputs, outputs: Outputs) -> Sketch:
    """Return the share of the area of each class; of a single map that of the foreground."""
    value = outputs[part.outputs[0]]
    if value.dtype.kind == "f" and is_single(value):
        values = finite_values(value)
        if not values.size:
            return Sketch()
        shares = {part.class_name(1): float((values >= foreground_level(values)).mean())}
        return Sketch(shares=shares, share_words="share of the area of {}", rest="")
    places = thin_places(classes_of(value))
    places = places[places >= 0]
    shares = shares_of_classes(part, places) if places.size else {}
    return Sketch(shares=shares, share_words="share of the area of {}")


TASK = ValueTask(
    "segmentation", "its areas (mean IoU)", "areas", compare_maps, sketch_areas, is_decision=True
)
