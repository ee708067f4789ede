"""Reports made up for tests."""

from typing import Any

import msgspec

from edgepack.bundle.manifest import Accuracy, GoldenTolerance, Placement, Requirements, Toolchain
from edgepack.packager.reports.report import (
    ModelReport,
    RefusedProfile,
    Report,
    ReportedFile,
    SamplesReport,
    VariantReport,
)
from edgepack.packager.search.attempts import Attempt

CPU = "CPUExecutionProvider"


def make_variant(**changes: Any) -> VariantReport:
    """Return a variant that won with its second attempt; `changes` replace its fields."""
    variant = VariantReport(
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
            details={"sqnr_db": 31.4},
        ),
        placement=Placement(provider=CPU, taken=9, total=10, left={"Resize": 1}, verified=True),
        requires=Requirements(arch=("x86_64",)),
        toolchain=Toolchain(onnxruntime="1.31.1"),
        tolerances={"scores": GoldenTolerance(cosine_min=0.99, nrmse_max=0.1)},
        recipe=("quantize: ops compute",),
        attempts=(
            Attempt(
                what="minmax, 9 nodes quantized",
                accuracy=0.91,
                size_bytes=240_000,
                because="came first",
                float_nodes=0,
            ),
            Attempt(
                what="mse, 2 of 9 nodes float",
                accuracy=0.995,
                size_bytes=250_000,
                because="kept",
                float_nodes=2,
                is_best=True,
            ),
        ),
        notes=("Two nodes stay float.",),
        files=(ReportedFile(path="model/cpu/model.onnx", size_bytes=250_000, sha256="ab" * 32),),
    )
    return msgspec.structs.replace(variant, **changes)


def make_report(*variants: VariantReport, **changes: Any) -> Report:
    """Return a report of the variants, by default of a single variant; `changes` replace its
    fields.
    """
    report = Report(
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
        variants=variants or (make_variant(),),
        refused=(RefusedProfile(profile="qnn-htp", problem="0.91 < 0.99", remedy="more samples"),),
        notes=("Only 20 samples.",),
        tools={"onnx": "1.23"},
    )
    return msgspec.structs.replace(report, **changes)
