"""What a compiled context asks of a device, without the compiler."""

from pathlib import Path

import pytest

from edgepack.agent.runtime.versions import is_within
from edgepack.bundle.manifest import Placement
from edgepack.packager.passes.compile import CompiledContext


@pytest.mark.parametrize(
    ("device", "reads_it"),
    [("2.51.0", True), ("2.52.1", True), ("2.50.9", False), ("3.0.0", False)],
)
def test_only_the_same_or_a_newer_sdk_of_the_same_major_version_reads_a_context(
    device: str, reads_it: bool
) -> None:
    compiled = CompiledContext(
        folder=Path("compiled"),
        model_file="model.onnx",
        compiled_for="v79 (SM8750)",
        compatibility_string="",
        provider_options={},
        placement=Placement(provider="QNNExecutionProvider", taken=1, total=1, verified=False),
        because="",
        tools={"onnxruntime": "1.31.1", "qnn-sdk": "2.51.0"},
    )
    assert list(compiled.required_sdks) == ["qnn-sdk"]
    assert is_within(device, compiled.required_sdks["qnn-sdk"]) is reads_it
