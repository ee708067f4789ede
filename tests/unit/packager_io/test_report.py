"""The report is one page that needs nothing else, and no name in it becomes markup."""

import msgspec

from edgepack.bundle.manifest import Accuracy, GoldenTolerance, Placement, Requirements, Toolchain
from edgepack.packager.reports.numbers import format_bytes, format_metric, format_size_change
from edgepack.packager.reports.page import render_report
from edgepack.packager.reports.report import (
    ModelReport,
    RefusedProfile,
    Rehearsed,
    Report,
    ReportedFile,
    SamplesReport,
    Timing,
    TriedAttempt,
    VariantReport,
    encode_report,
    latency_text,
)

CPU = "CPUExecutionProvider"


def _variant(*, verified: bool = True) -> VariantReport:
    return VariantReport(
        name="cpu",
        profile="cpu",
        precision="a8w8",
        provider=CPU,
        device="cpu",
        size_bytes=250_000,
        degraded=False,
        accuracy=Accuracy(
            metric="top1_agreement",
            value=0.995,
            float_value=1.0,
            budget=0.99,
            sample_count=30,
            provider=CPU,
            details={"sqnr db": 31.4},
        ),
        placement=Placement(provider=CPU, taken=9, total=10, left={"Resize": 1}, verified=verified),
        requires=Requirements(arch=("x86_64",)),
        toolchain=Toolchain(onnxruntime="1.31.1"),
        tolerances={"scores": GoldenTolerance(cosine_min=0.99, nrmse_max=0.1)},
        recipe=("quantize: ops compute",),
        attempts=(
            TriedAttempt(what="MinMax", accuracy=0.91, size_bytes=240_000, because="came first"),
            TriedAttempt(what="MSE", accuracy=0.995, size_bytes=250_000, because="kept"),
        ),
        notes=("Two nodes stay float.",),
        files=(ReportedFile(path="model/cpu/model.onnx", size_bytes=250_000, sha256="ab" * 32),),
    )


def _report(*variants: VariantReport) -> Report:
    return Report(
        name="ocr",
        version="1.2.0",
        release=1_002_000,
        created_at="",
        model=ModelReport(
            file="<script>alert(1)</script>.onnx",
            sha256="cd" * 32,
            size_bytes=1_000_000,
            opset=17,
            inputs=("x: float32[1,3,8,8]",),
            outputs=("y: float32[1,10]",),
            node_count=10,
        ),
        samples=SamplesReport(
            calibration_count=50,
            search_count=20,
            held_out_count=30,
            golden_count=8,
            golden_bytes=9_000,
            is_random=False,
        ),
        variants=variants or (_variant(),),
        refused=(RefusedProfile(profile="qnn-htp", problem="0.91 < 0.99", remedy="more samples"),),
        notes=("Only 20 samples.",),
        tools={"onnx": "1.23"},
    )


def test_the_page_tells_what_was_tried_refused_and_left() -> None:
    page = render_report(_report())
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


def test_names_never_become_markup() -> None:
    page = render_report(_report())
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.onnx" in page


def test_the_page_loads_nothing_from_elsewhere() -> None:
    page = render_report(_report())
    for token in ("http://", "https://", "src=", "@import", "url("):
        assert token not in page


def test_the_json_is_read_back_as_it_was() -> None:
    report = _report()
    assert msgspec.json.decode(encode_report(report), type=Report) == report


def test_a_latency_is_measured_rehearsed_simulated_or_absent() -> None:
    variant = _variant()
    timed = msgspec.structs.replace(variant, timing=Timing(latency_ms=2.0, float_latency_ms=4.0))
    assert latency_text(timed) == "2.00 ms (2.00×)"
    seen = Rehearsed(ran=True, because="", latency_ms=12.34)
    assert latency_text(msgspec.structs.replace(variant, rehearsal=seen)) == "12.3 ms"
    simulated = msgspec.structs.replace(seen, is_simulator=True)
    assert latency_text(msgspec.structs.replace(variant, rehearsal=simulated)) == "simulator"
    assert latency_text(variant) == "not run here"


def test_what_was_not_run_here_claims_no_nodes() -> None:
    assert "9/10" not in render_report(_report(_variant(verified=False)))


def test_numbers_read_well() -> None:
    assert [format_bytes(size) for size in (0, 999, 12_345, 6_800_000, 3_210_000_000)] == [
        "0 B",
        "999 B",
        "12.3 KB",
        "6.80 MB",
        "3.21 GB",
    ]
    assert format_metric(1.0) == "1.0000"
    assert format_metric(0.99999) == "0.9999+"
    assert format_size_change(100, 380) == "3.8× smaller"
    assert format_size_change(101, 100) == "same size"
    assert format_size_change(130, 100) == "1.3× larger"
