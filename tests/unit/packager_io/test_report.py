"""The report is a self-contained page, and no name becomes markup."""

import msgspec

from edgepack.bundle.manifest import Placement
from edgepack.bundle.metadata import GoldenAgreement
from edgepack.number_format import (
    format_bytes,
    format_metric,
    format_percent,
    format_size_change,
)
from edgepack.packager.reports import plot
from edgepack.packager.reports.page import render_report
from edgepack.packager.reports.reasons import explain, explain_refusal, sum_up
from edgepack.packager.reports.report import (
    MeasuredVariant,
    RefusedProfile,
    Rehearsed,
    Report,
    Timing,
    encode_report,
    latency_text,
    speed_text,
)
from edgepack.packager.reports.views import latency_points, shared_prefix, size_points
from edgepack.packager.runtime.inspection import Inspection, LayerError, TensorRange
from edgepack.packager.runtime.unassigned_nodes import UnassignedNode
from edgepack.packager.search.attempts import SensitiveNode
from edgepack.tasks.description import TaskOutputs
from tests.unit.packager_io.reports import CPU, make_report, make_variant


def test_the_page_tells_what_was_tried_refused_and_left() -> None:
    page = render_report(make_report())
    for text in (
        "4.0× smaller",
        "9/10",
        "left: 1 on the CPU",
        '<td class="name">Resize</td><td class="n">1</td>',
        "0.91 &lt; 0.99",
        "Try: more samples",
        "budget 0.9900",
        "Two nodes stay float.",
        "sqnr db",
        "arch x86_64",
    ):
        assert text in page


def test_golden_samples_are_told_by_the_task_that_they_keep_or_by_their_error() -> None:
    part = TaskOutputs(task="selection", outputs=("boxes",))
    agreements = (GoldenAgreement(part=part, keep=0.4),)
    both = msgspec.structs.replace(make_variant(), agreements=agreements)
    page = render_report(msgspec.structs.replace(make_report(), variants=(both,)))
    assert '<code>boxes</code></td><td class="n" colspan="2">keeps 0.4000 of selection' in page
    assert '<td class="n">≥ 0.9900</td>' in page


def test_names_never_become_markup() -> None:
    page = render_report(make_report())
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.onnx" in page


def test_the_page_loads_nothing_from_elsewhere() -> None:
    page = render_report(make_report())
    for token in ("http://", "https://", "src=", "@import", "url("):
        assert token not in page


def test_the_json_is_read_back_as_it_was() -> None:
    report = make_report()
    assert msgspec.json.decode(encode_report(report), type=Report) == report


def test_a_latency_is_measured_rehearsed_simulated_or_absent() -> None:
    variant = make_variant()
    timed = msgspec.structs.replace(variant, timing=Timing(latency_ms=2.0, float_latency_ms=4.0))
    assert latency_text(timed) == "2.00 ms (2.00×)"
    seen = Rehearsed(ran=True, because="", latency_ms=12.34)
    assert latency_text(msgspec.structs.replace(variant, rehearsal=seen)) == "12.3 ms"
    simulated = msgspec.structs.replace(seen, is_simulator=True)
    assert latency_text(msgspec.structs.replace(variant, rehearsal=simulated)) == "simulator"
    assert latency_text(variant) == "not run here"


def test_what_was_not_run_here_claims_no_nodes() -> None:
    unverified = Placement(provider=CPU, taken=9, total=10, verified=False)
    assert "9/10" not in render_report(make_report(make_variant(placement=unverified)))


def test_numbers_read_well() -> None:
    assert [format_bytes(size) for size in (0, 999, 12_345, 6_800_000, 3_210_000_000)] == [
        "0 B",
        "999 B",
        "12.3 KB",
        "6.80 MB",
        "3.21 GB",
    ]
    assert [format_percent(share) for share in (0.0, 1e-7, 0.0031, 0.224, 12.0)] == [
        "0 %",
        "below 0.001 %",
        "0.31 %",
        "22.4 %",
        "1,200 %",
    ]
    assert format_metric(1.0) == "1.0000"
    assert format_metric(0.99999) == "0.9999+"
    assert format_metric(-0.00001) == "0.0000"
    assert format_size_change(100, 380) == "3.8× smaller"
    assert format_size_change(101, 100) == "same size"
    assert format_size_change(130, 100) == "1.3× larger"


LAYER = LayerError(
    tensor="t", node="<b>conv</b>", op="Conv", is_lowered=True, nrmse=0.224, sqnr_db=13.0
)
WIDE = TensorRange(
    tensor="relu_7",
    dtype="uint8",
    scale=0.1,
    zero_point=3,
    covered_low=-0.3,
    covered_high=25.2,
    seen_low=-0.3,
    seen_high=25.2,
    central_low=0.0,
    central_high=2.5,
    clipped_share=0.002,
    outlier_factor=10.2,
)
INSIDE = Inspection(sample_count=4, layers=(LAYER,), ranges=(WIDE,))


def test_layers_ranges_and_culprits_are_told() -> None:
    variant = make_variant(
        inspection=INSIDE, sensitive_nodes=(SensitiveNode(name="head", noise=0.0463),)
    )
    page = render_report(make_report(variant))
    for text in (
        "Error of each layer",
        "&lt;b&gt;conv&lt;/b&gt;",
        "22.4 %",
        "13.0 dB",
        "1 with outliers",
        "10.2× as wide as needed",
        "0.2 %",
        "0.1, 3",
        "Nodes that cost the most",
        "4.63 %",
    ):
        assert text in page
    assert "<b>conv" not in page


def test_nodes_that_were_left_are_grouped_with_the_provider_s_reason() -> None:
    left = tuple(UnassignedNode(name=f"cast_{i}", op="Cast", reason="no <int64>") for i in range(5))
    page = render_report(make_report(make_variant(left_nodes=left)))
    assert "cast_0, cast_1, cast_2</code> and 2 more" in page
    assert page.count("no &lt;int64&gt;") == 1


def _refused() -> RefusedProfile:
    variant = make_variant()
    best = MeasuredVariant(
        precision="a8w8",
        size_bytes=240_000,
        accuracy=msgspec.structs.replace(variant.accuracy, value=0.91),
        placement=variant.placement,
        attempts=variant.attempts,
        sensitive_nodes=(SensitiveNode(name="head", noise=0.3),),
        inspection=INSIDE,
        left_nodes=(),
        notes=(),
    )
    return RefusedProfile(
        profile="qnn-htp-a8w8", problem="keeps too little", remedy="qnn-htp", best=best
    )


def test_a_refused_build_shows_its_curve_and_the_nodes_to_blame() -> None:
    report = make_report(variants=(), refused=(_refused(),))
    assert sum_up(report) == "No bundle was made: the profile was refused."
    page = render_report(report)
    for text in (
        "The best of 2 candidates keeps 0.9100 on held-out samples; the budget is 0.9900.",
        "Keeps too little.",
        "Try: qnn-htp",
        "head",
        'class="plot"',
        "This build made no bundle.",
    ):
        assert text in page
    assert msgspec.json.decode(encode_report(report), type=Report) == report


def test_a_refusal_for_another_reason_than_accuracy_tells_that_reason() -> None:
    refused = _refused()
    assert refused.best is not None
    kept = msgspec.structs.replace(refused.best, accuracy=make_variant().accuracy)
    assert explain_refusal("it is too large", kept) == "It is too large."


def test_nodes_of_16_bits_are_counted_as_such_where_they_are_what_costly_nodes_become() -> None:
    first, second = make_variant().attempts
    attempts = tuple(
        msgspec.structs.replace(attempt, float_nodes=0, high_precision_nodes=count)
        for attempt, count in ((first, 0), (second, 2))
    )
    page = render_report(make_report(make_variant(attempts=attempts)))
    assert "High precision</th>" in page
    assert "Float nodes</th>" not in page
    assert '<td class="n">2</td>' in page
    assert "Float nodes</th>" in render_report(make_report())


def test_one_sentence_says_why_a_variant_won() -> None:
    variant = make_variant()
    second = variant.attempts[1]
    assert explain(variant) == (
        "Of 2 candidates, mse, 2 of 9 nodes float is the cheapest that holds the budget with room "
        "to spare."
    )
    alone = msgspec.structs.replace(second, what="minmax")
    assert explain(make_variant(attempts=(alone,))).startswith("The first candidate, minmax, holds")
    assert "marked as degraded" in explain(make_variant(degraded=True))
    float_model = make_variant(float_because="it is not faster")
    assert explain(float_model) == "The float model is published: it is not faster."
    assert sum_up(make_report(float_model, make_variant(name="npu"), refused=())) == (
        "2 variants hold their budgets on samples that were held out. For cpu the float model is "
        "published."
    )
    assert "nothing to choose" in explain(make_variant(attempts=()))


def test_the_winner_wears_the_ring_and_it_may_be_the_float_model() -> None:
    variant = make_variant()
    assert [point.is_winner for point in size_points(variant, 1_000_000)] == [False, False, True]
    float_model = make_variant(precision="fp32", float_because="it is not faster")
    assert [point.is_winner for point in size_points(float_model, 1_000_000)] == [
        True,
        False,
        False,
    ]
    assert latency_points(variant) == (), "nothing was timed"
    page = render_report(make_report(variant))
    assert page.count('class="ring"') == 1


def test_a_point_far_below_the_budget_is_drawn_at_the_edge() -> None:
    points = size_points(make_variant(), 1_000_000)
    drawn = plot.plot(points, [0.2, 0.995], make_variant().accuracy, "size", str)
    assert 'class="missed" d="M' in drawn, "an arrow"
    assert "NaN" not in drawn
    assert "inf" not in drawn


def test_what_is_drawn_at_the_edge_has_its_place_in_the_legend() -> None:
    first, second = make_variant().attempts
    far = make_variant(attempts=(msgspec.structs.replace(first, accuracy=0.2), second))
    near = make_variant(attempts=(msgspec.structs.replace(first, accuracy=0.985), second))
    assert "far below the scale, drawn at its edge" in render_report(make_report(far))
    assert "far below the scale" not in render_report(make_report(near))


def test_the_speed_is_told_beside_the_float_model_s() -> None:
    timed = make_variant(timing=Timing(latency_ms=2.0, float_latency_ms=3.0))
    assert speed_text(timed) == "1.50× the float model's speed"
    same = make_variant(timing=Timing(latency_ms=2.0, float_latency_ms=2.01))
    assert speed_text(same) == "as fast as float"
    assert speed_text(make_variant()) == ""


def test_a_prefix_that_all_names_share_is_left_out_once_it_is_long() -> None:
    assert shared_prefix(["model/encoder/a/Conv", "model/encoder/b/Conv"]) == "model/encoder"
    assert shared_prefix(["m/a", "m/b"]) == ""
    assert shared_prefix(["model/encoder/a"]) == ""


def test_each_attempt_is_judged_by_what_decided_of_it() -> None:
    first, second = make_variant().attempts
    scores, boxes = "explained_variance (y, channel 4)", "explained_variance (y, channels 0…3)"
    attempts = (
        msgspec.structs.replace(first, metric=scores, accuracy=0.985, budget=0.98),
        msgspec.structs.replace(second, metric=boxes, accuracy=0.995, budget=0.98),
    )
    page = render_report(make_report(make_variant(attempts=attempts)))
    assert "Judged by what has the least to spare, named below each value, on the samples" in page
    for words in (scores, boxes):
        assert f"<small>{words.replace('_', ' ')}</small>" in page
    assert 'class="n lo"' not in page, "each holds a budget of its own"
    alike = tuple(msgspec.structs.replace(each, metric=boxes) for each in attempts)
    page = render_report(make_report(make_variant(attempts=alike)))
    assert "Judged by explained variance (y, channels 0…3) on the samples that are for" in page
