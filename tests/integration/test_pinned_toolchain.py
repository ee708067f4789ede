"""Builds with variants tested in another environment than the build's own."""

import sys
from pathlib import Path

from edgepack.agent.runtime.facts import read_device_facts
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.pipeline.build import build_bundle as build
from edgepack.packager.pipeline.publication import BuildResult
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import silent
from edgepack.packager.reports.report import VariantReport

OPENVINO_PYTHON = Path(__file__).parents[2] / ".venv-openvino" / "bin" / "python"
"""`make test` sets it up before it runs this."""


def _build(
    material: Path, output: Path, profiles: tuple[str, ...], toolchains: dict[str, str]
) -> BuildResult:
    request = BuildRequest(
        model=material / "small.onnx",
        output=output,
        name="small",
        version="1.0.0",
        release=1_000_000,
        profiles=profiles,
        key=material / "release.key",
        calibration=str(material / "samples.npz"),
        shapes={"images": (1, 3, 8, 8)},
        toolchains=toolchains,
        outputs={"scores": OutputDeclaration(task="classification")},
    )
    return build(request, silent)


def _variants(result: BuildResult) -> dict[str, VariantReport]:
    return {variant.name: variant for variant in result.report.variants}


def test_one_build_proves_variants_for_providers_that_share_no_environment(
    material: Path, tmp_path: Path
) -> None:
    profiles = ("openvino-cpu", "qnn-htp", "cpu")
    toolchains = {"openvino-cpu": str(OPENVINO_PYTHON)}
    result = _build(material, tmp_path / "bundle", profiles, toolchains)
    variants = _variants(result)
    assert all(variant.placement.verified for variant in variants.values())
    openvino = variants["openvino-cpu"]
    assert openvino.placement.provider == "OpenVINOExecutionProvider"
    assert openvino.placement.taken == openvino.placement.total > 0
    assert openvino.rehearsal is not None
    assert openvino.rehearsal.ran
    assert openvino.rehearsal.because.startswith("Ran in its toolchain, Python ")
    assert not openvino.rehearsal.is_simulator
    assert openvino.timing is not None
    assert openvino.timing.latency_ms, "the best candidate was timed there"
    assert openvino.timing.float_latency_ms, "beside the float model"
    here = read_device_facts().runtime
    assert f"onnxruntime {here}" not in openvino.rehearsal.because, "its runtime is another"
    assert any("OpenVINOExecutionProvider of its toolchain" in note for note in openvino.notes)
    assert "openvino-cpu" not in result.report.choice, "that is what this environment would run"
    bundle = b"".join(
        path.read_bytes() for path in sorted(result.output.rglob("*")) if path.is_file()
    )
    assert str(OPENVINO_PYTHON.parent).encode() not in bundle, "paths differ between machines"


def test_without_it_the_variant_is_not_tried_and_the_option_is_named(
    material: Path, tmp_path: Path
) -> None:
    openvino = _variants(_build(material, tmp_path / "bundle", ("openvino-cpu",), {}))[
        "openvino-cpu"
    ]
    assert not openvino.placement.verified
    assert any("--toolchain openvino-cpu=PYTHON names" in note for note in openvino.notes)


def test_a_context_is_compiled_by_the_sdk_of_the_toolchain(material: Path, tmp_path: Path) -> None:
    result = _build(
        material, tmp_path / "bundle", ("qnn-htp-v73",), {"qnn-htp-v73": sys.executable}
    )
    variant = _variants(result)["qnn-htp-v73"]
    assert variant.toolchain.compiled_for.startswith("v73")
    assert variant.toolchain.tools["qnn-sdk"] == read_device_facts().drivers["qnn-sdk"]
    assert any("simulator of QNNExecutionProvider of its toolchain" in it for it in variant.notes)
