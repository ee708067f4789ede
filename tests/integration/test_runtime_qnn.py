"""QNN for real: sessions, probes and contexts on the HTP simulator of the plug-in."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from edgepack.agent.config import ProbeConfig
from edgepack.agent.runtime.opening import ProviderSettings, open_model_file
from edgepack.agent.runtime.probe import probe_variant
from edgepack.bundle.golden import Golden, write_golden
from edgepack.bundle.manifest import GOLDEN_FILE
from edgepack.errors import BuildError
from edgepack.packager.passes.compile import compile_context
from edgepack.packager.profiles.schema import Compile, Limits, Provider
from tests.simulators.manifests import QNN, make_variant
from tests.unit.agent_runtime.examples import conv_model, make_inputs

OLDEST = Path(__file__).parents[2] / ".venv-oldest" / "bin" / "python"
"""`make test` sets it up: the oldest ONNX Runtime that profiles allow."""


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.samples = iter(make_inputs(6))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.samples, None)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny model, 8 bit QDQ."""
    folder = tmp_path_factory.mktemp("qdq")
    onnx.save(conv_model(), folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "model.onnx",
        _Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QUInt8,
    )
    return folder / "model.onnx"


def near(want: np.ndarray, got: np.ndarray) -> bool:
    return bool(np.linalg.norm(want - got) < 0.05 * np.linalg.norm(want))


def test_the_simulator_runs_the_model_and_says_that_it_took_the_nodes(quantized: Path) -> None:
    session = open_model_file(quantized, ProviderSettings(provider=QNN, device="npu"))
    assert session.provider == QNN
    assert session.placement.verified
    assert session.placement.taken > 5
    assert set(session.placement.left) <= {"QuantizeLinear", "DequantizeLinear"}
    on_cpu = open_model_file(quantized)
    feeds = make_inputs(1)[0]
    assert near(on_cpu.run(feeds)["y"], session.run(feeds)["y"])


def test_a_probe_proves_a_variant_on_the_simulator(quantized: Path, tmp_path: Path) -> None:
    variant = make_variant("npu", provider=QNN, device="npu")
    folder = tmp_path / variant.folder
    folder.mkdir(parents=True)
    (folder / variant.model_file).write_bytes(quantized.read_bytes())
    float_model = open_model_file(quantized.with_name("float.onnx"))
    inputs = make_inputs(3)
    (tmp_path / GOLDEN_FILE).parent.mkdir()
    golden = Golden(inputs=inputs, outputs=tuple(float_model.run(feeds) for feeds in inputs))
    write_golden(tmp_path / GOLDEN_FILE, golden)
    result = probe_variant(tmp_path, variant, config=ProbeConfig(timeout_s=400, runs=3))
    assert result.right, result.because
    assert result.provider == QNN
    assert result.taken > 5
    assert result.latency_ms is not None


def test_a_context_is_compiled_loaded_again_and_gives_the_same_outputs(
    quantized: Path, tmp_path: Path
) -> None:
    feeds = make_inputs(1)[0]
    compiled = compile_context(
        quantized,
        tmp_path / "v68",
        feeds,
        Compile(htp_arch="68"),
        Provider(options={"htp_arch": "73", "htp_performance_mode": "burst"}),
        Limits(),
    )
    names = sorted(path.name for path in compiled.folder.iterdir())
    assert names == ["model.onnx", "model_qnn.bin"]
    assert compiled.compiled_for == "v68 (SM8350)"
    assert compiled.provider_options == {
        "htp_arch": "68",
        "soc_model": "30",
        "htp_performance_mode": "burst",
    }
    assert compiled.compatibility_string.split(":")[4:6] == ["68", "30"]
    assert compiled.placement.verified, compiled.because
    assert "gave the model's outputs" in compiled.because
    assert set(compiled.tools) == {"onnxruntime", "qnn-sdk"}

    context = open_model_file(
        tmp_path / "v68/model.onnx",
        ProviderSettings(provider=QNN, device="npu", provider_options=compiled.provider_options),
    )
    assert context.placement.taken == 1
    assert near(open_model_file(quantized).run(feeds)["y"], context.run(feeds)["y"])


def test_the_same_model_gives_the_same_context_bytes(quantized: Path, tmp_path: Path) -> None:
    contexts = [
        compile_context(
            quantized,
            tmp_path / name,
            make_inputs(1)[0],
            Compile(soc_model="60"),
            Provider(),
            Limits(),
        )
        for name in ("one", "two")
    ]
    for name in ("model.onnx", "model_qnn.bin"):
        one, two = (compiled.folder / name for compiled in contexts)
        assert one.read_bytes() == two.read_bytes()


def test_a_chip_without_its_own_option_is_compiled_for_by_its_number(
    quantized: Path, tmp_path: Path
) -> None:
    compiled = compile_context(
        quantized,
        tmp_path / "v79",
        make_inputs(1)[0],
        Compile(htp_arch="v79"),
        Provider(),
        Limits(),
    )
    assert compiled.compiled_for == "v79 (SM8750)"
    assert "htp_arch" not in compiled.provider_options
    assert compiled.placement.verified or "was not verified" in compiled.because


def test_a_compiled_context_has_an_ir_version_that_the_oldest_runtime_reads(
    quantized: Path, tmp_path: Path
) -> None:
    compiled = compile_context(
        quantized, tmp_path / "v73", make_inputs(1)[0], Compile(htp_arch="73"), Provider(), Limits()
    )
    path = compiled.folder / compiled.model_file
    written = onnx.load(path, load_external_data=False)
    assert written.ir_version <= Limits().ir_version_max
    assert {entry.domain for entry in written.opset_import} <= {"", "com.microsoft"}
    assert _refusal_of_oldest(path).count("EPContext"), (
        "it reads the file, and has no QNN to run it"
    )
    written.ir_version = 14  # what onnxruntime 1.32 writes
    newer = path.with_name("newer.onnx")
    newer.write_bytes(written.SerializeToString())
    assert "Unsupported model IR version: 14" in _refusal_of_oldest(newer)


def _refusal_of_oldest(path: Path) -> str:
    """Return the error of the oldest allowed ONNX Runtime, which has no QNN, for a model."""
    if not OLDEST.exists():
        pytest.skip("the oldest onnxruntime is not installed in .venv-oldest: make test")
    code = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1])"
    command = [str(OLDEST), "-I", "-c", code, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return str(run.stderr).strip().splitlines()[-1]


def test_a_context_that_needs_an_ir_version_beyond_the_limits_is_a_build_error(
    quantized: Path, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=r"the context needs IR version 8, .* read up to 7"):
        compile_context(
            quantized,
            tmp_path / "v73",
            make_inputs(1)[0],
            Compile(htp_arch="73"),
            Provider(),
            Limits(ir_version_max=7),
        )


def test_without_the_plug_in_compiling_says_what_to_install(
    quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepack.packager.passes.compile.is_installed", lambda plugin: False)
    with pytest.raises(BuildError, match="needs QNNExecutionProvider, which is not") as caught:
        compile_context(
            quantized, tmp_path / "out", {}, Compile(htp_arch="68"), Provider(), Limits()
        )
    assert caught.value.remedy == "pip install 'edgepack[qnn]'"


def test_a_model_that_is_no_model_is_a_build_error(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(BuildError, match="cannot open the model") as caught:
        compile_context(
            tmp_path / "bad.onnx",
            tmp_path / "out",
            {},
            Compile(htp_arch="68"),
            Provider(),
            Limits(),
        )
    assert "bad.onnx for v68 (Snapdragon 888)" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os.kill(os.getpid(), 11)", "the compiler failed: crashed with SIGSEGV"),
        ("import time; time.sleep(600)", "the compiler failed: no answer within 1 s"),
        ("print('{')", "the compiler failed: its answer cannot be read"),
    ],
)
def test_a_compiler_that_crashes_hangs_or_babbles_is_a_build_error(
    quantized: Path, tmp_path: Path, code: str, message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        compile_context(
            quantized,
            tmp_path / "out",
            make_inputs(1)[0],
            Compile(htp_arch="68", timeout_s=1.0),
            Provider(),
            Limits(),
            command=(sys.executable, "-P", "-c", code),
        )
