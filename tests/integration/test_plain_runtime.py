"""A bundle's settings for a variant in plain ONNX Runtime, checked in plain ONNX Runtime."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from edgepack.bundle.golden import Golden, read_golden
from edgepack.bundle.manifest import GOLDEN_FILE, MANIFEST_FILE, Variant, decode_manifest
from edgepack.errors import BuildError
from edgepack.packager import build
from edgepack.packager.graph.saturation import EXACT_SUMS
from tests.integration.source_graphs import model_of, node, value_info

OLDEST = Path(__file__).parents[2] / ".venv-oldest" / "bin" / "python"
"""`make test` sets it up: the oldest ONNX Runtime that profiles allow, and no edgepack."""

_WITHOUT_VNNI = ("qemu-x86_64", "-cpu", "Haswell")
"""Computes as a CPU with AVX2 does, whatever CPU this is."""

_RUN = """
import json, sys
import numpy as np, onnxruntime

cases, feeds, outputs = json.loads(sys.argv[1]), np.load(sys.argv[2]), sys.argv[3]
made = []
for model, options in cases:
    settings = onnxruntime.SessionOptions()
    level = options.pop("session.graph_optimization_level", None)
    if level:
        levels = onnxruntime.GraphOptimizationLevel
        settings.graph_optimization_level = getattr(
            levels, "ORT_DISABLE_ALL" if level == "disable_all" else "ORT_ENABLE_" + level.upper()
        )
    for key, value in options.items():
        settings.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    made.append(np.stack([session.run(None, {given.name: sample})[0] for sample in feeds]))
np.save(outputs, np.stack(made))
"""


def _run(
    command: Sequence[str | Path], cases: Sequence[tuple[Path, Mapping[str, str]]], golden: Golden
) -> Sequence[np.ndarray]:
    """Return the first output on all golden inputs, computed by a program without edgepack.

    Args:
        command: The Python, which starts once.
        cases: Models, each with its session options.
        golden: The inputs.
    """
    folder = cases[0][0].parent.parent
    feeds, outputs = folder / "feeds.npy", folder / "outputs.npy"
    np.save(feeds, np.stack([next(iter(sample.values())) for sample in golden.inputs]))
    told = msgspec.json.encode([(str(model), options) for model, options in cases]).decode()
    subprocess.run([*command, "-I", "-c", _RUN, told, feeds, outputs], check=True)
    return list(np.load(outputs))


def _opened(bundle: Path) -> tuple[dict[str, Variant], Golden]:
    manifest = decode_manifest((bundle / MANIFEST_FILE).read_bytes())
    variants = {variant.name: variant for variant in manifest.variants}
    return variants, read_golden(bundle / GOLDEN_FILE)


def test_every_variant_gives_its_answers_in_the_oldest_and_newest_release_or_says_what_it_needs(
    material: Path, tmp_path: Path
) -> None:
    if (
        not OLDEST.exists()
        or subprocess.run([OLDEST, "-c", "import onnxruntime"], check=False).returncode
    ):
        pytest.skip("onnxruntime 1.18 has no wheel for this Python")
    bundle = tmp_path / "bundle"
    build(
        material / "small.onnx",
        profiles=["cpu", "qnn-htp", "qnn-htp-a8w8", "vitisai-xint8"],
        calibration=material / "samples.npz",
        shapes={"images": (1, 3, 8, 8)},
        key=material / "release.key",
        version="1.0.0",
        output=bundle,
        plain_runtimes=[str(OLDEST)],
    )
    variants, golden = _opened(bundle)
    expected = np.stack([next(iter(sample.values())) for sample in golden.outputs])
    cases = []
    for variant in variants.values():
        plain = variant.facts.plain_runtime
        assert plain is not None
        assert plain.right
        assert plain.releases[0] == onnxruntime.__version__
        assert plain.releases[1].startswith("1.18.")
        cases.append((bundle / variant.folder / variant.model_file, plain.session_options))
    for python in (sys.executable, OLDEST):
        for name, got in zip(variants, _run([python], cases, golden), strict=True):
            error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
            assert error < 0.1, f"{name} in {python}"
    saturating = variants["qnn-htp-a8w8"].facts.plain_runtime
    assert saturating is not None
    assert saturating.session_options == EXACT_SUMS, "its weights use all 8 bits"


def _saturating(weights: str) -> onnx.ModelProto:
    """Return a product between pairs, in the form of another tool: sums of two products pass 16
    bits.

    Args:
        weights: `stored` as integers, or `trained` as floats that the graph quantizes.
    """
    rng = np.random.default_rng(1)
    weight = rng.integers(90, 128, (64, 8)).astype(np.int8) * rng.choice([-1, 1], (1, 8))
    constants = {
        "xs": np.float32(1 / 255),
        "xz": np.uint8(0),
        "ws": np.float32(0.01),
        "w": weight.astype(np.int8),
        "ys": np.float32(0.6),
        "yz": np.uint8(128),
    }
    first = []
    if weights == "trained":
        floats = constants["w"].astype(np.float32) * constants["ws"]
        constants |= {"f": floats, "wz": np.int8(0)}
        del constants["w"]
        first = [node("QuantizeLinear", ["f", "ws", "wz"], ["w"])]
    return model_of(
        [
            *first,
            node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
            node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
            node("DequantizeLinear", ["w", "ws"], ["wd"]),
            node("MatMul", ["xd", "wd"], ["m"], name="product"),
            node("QuantizeLinear", ["m", "ys", "yz"], ["yq"]),
            node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
        ],
        [value_info("x", [1, 64])],
        [value_info("y", [1, 8])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="saturation is a matter of x86 CPUs")
@pytest.mark.skipif(shutil.which(_WITHOUT_VNNI[0]) is None, reason="qemu-user is not installed")
@pytest.mark.parametrize("weights", ["stored", "trained"])
def test_a_quantized_model_gives_the_same_on_cpus_with_and_without_vnni(
    key: Path, tmp_path: Path, weights: str
) -> None:
    model, bundle = tmp_path / "saturating.onnx", tmp_path / "bundle"
    onnx.save(_saturating(weights), model)
    rng = np.random.default_rng(2)
    build(
        model,
        profiles=["fp32", "cpu"],
        calibration=[{"x": rng.uniform(0.6, 1, (1, 64)).astype(np.float32)} for _ in range(40)],
        key=key,
        version="1.0.0",
        output=bundle,
    )
    variants, golden = _opened(bundle)
    expected = np.stack([sample["y"] for sample in golden.outputs])
    files = [bundle / variant.folder / variant.model_file for variant in variants.values()]
    assert all(variant.session_options == EXACT_SUMS for variant in variants.values())
    exact = [(file, EXACT_SUMS) for file in files]
    plain: list[tuple[Path, dict[str, str]]] = [(file, {}) for file in files]
    with_vnni = _run([sys.executable], exact, golden)
    without = _run([*_WITHOUT_VNNI, sys.executable], [*exact, *plain], golden)
    for number, right in enumerate(with_vnni):
        assert np.array_equal(right, without[number])
        assert np.abs(right - expected).max() < 0.7, "one step of the output at the most"
        saturated = without[len(files) + number]
        assert np.abs(saturated - right).max() > 1, "without the setting it saturates"


def test_an_environment_without_onnx_runtime_is_refused(key: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    for named, told in (
        (str(tmp_path / "bare/bin/python"), "No module named 'onnxruntime'"),
        (str(tmp_path / "absent/bin/python"), "is not a program that can be run"),
    ):
        with pytest.raises(BuildError, match=told) as caught:
            build(
                tmp_path / "any.onnx",
                profiles=["cpu"],
                key=key,
                version="1.0.0",
                output=tmp_path / "bundle",
                plain_runtimes=[named],
            )
        assert caught.value.found_in == f"--plain-runtime {named}"
