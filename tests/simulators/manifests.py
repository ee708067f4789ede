"""Variants for the manifests of tests: all that a manifest wants, the parts that matter named."""

from collections.abc import Mapping, Sequence

from edgepack.bundle.manifest import (
    Accuracy,
    FileEntry,
    GoldenTolerance,
    Placement,
    Requirements,
    Toolchain,
    Variant,
    VariantFacts,
)

CPU = "CPUExecutionProvider"
QNN = "QNNExecutionProvider"
DIGEST = "ab" * 32


def make_variant(
    name: str = "cpu",
    *,
    provider: str = CPU,
    device: str = "cpu",
    model_file: str = "model.onnx",
    files: Sequence[FileEntry] = (),
    requires: Requirements | None = None,
    degraded: bool = False,
    session_options: Mapping[str, str] | None = None,
    provider_options: Mapping[str, str] | None = None,
    cosine_min: float = 0.99,
    nrmse_max: float = 0.1,
    token: str = "",
) -> Variant:
    """Return a float variant with the single output `y`; see `Variant` and `VariantFacts`."""
    return Variant(
        name=name,
        provider=provider,
        device=device,
        compatibility_string=token,
        model_file=model_file,
        session_options=dict(session_options or {}),
        provider_options=dict(provider_options or {}),
        facts=VariantFacts(
            profile=name,
            profile_sha256=DIGEST,
            precision="fp32",
            requires=requires or Requirements(),
            toolchain=Toolchain(onnxruntime="1.31.1"),
            files=tuple(files),
            accuracy=Accuracy(
                metric="cosine",
                value=1.0,
                float_value=1.0,
                budget=0.99,
                sample_count=8,
                provider=provider,
            ),
            tolerances={"y": GoldenTolerance(cosine_min=cosine_min, nrmse_max=nrmse_max)},
            placement=Placement(provider=provider, taken=3, total=3, verified=True),
            degraded=degraded,
        ),
    )
