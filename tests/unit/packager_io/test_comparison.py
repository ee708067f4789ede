"""`edgepack compare` lists differences, equal parts, and the download of a device."""

import json
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from edgepack.bundle.archive import pack
from edgepack.bundle.chunks import entry
from edgepack.bundle.golden import Golden, Tensor, write_golden
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from edgepack.bundle.manifest import (
    Accuracy,
    BundleFacts,
    GoldenTolerance,
    Manifest,
    Placement,
    Requirements,
    Toolchain,
    Variant,
    VariantFacts,
    encode_manifest,
)
from edgepack.bundle.signature import sign_folder
from edgepack.errors import BundleError
from edgepack.packager.cli.compare import compare as command
from edgepack.packager.cli.delta import delta
from edgepack.packager.comparison.differences import compare_sides as compare
from edgepack.packager.comparison.reading import read_compared
from edgepack.packager.comparison.result import Difference
from edgepack.packager.comparison.tensors import (
    TensorComparison,
    compare_tensors,
    mark_tensors,
)
from edgepack.packager.graph.node_precision import node_precision
from edgepack.packager.graph.tensor_offsets import tensor_offsets
from edgepack.packager.reports.report import (
    ModelReport,
    Report,
    ReportedFile,
    SamplesReport,
    Timing,
    VariantReport,
    encode_report,
)
from tests.graphs import graph_model
from tests.unit.packager_io.models import save, save_with_external_data
from tests.unit.packager_io.reports import make_report, make_variant

CPU = "CPUExecutionProvider"
KEPT_BYTES = 200_000


def _model(*, changed: float, is_second_quantized: bool = False) -> onnx.ModelProto:
    """Return two MatMuls of 200 kB each; `changed` decides the second weights."""
    values = np.random.default_rng(0).normal(0, 1, (250, 200)).astype(np.float32)
    weights = [
        numpy_helper.from_array(values, "w1"),
        numpy_helper.from_array(values.T * np.float32(changed), "w2"),
        numpy_helper.from_array(np.array(0.1, np.float32), "scale"),
        numpy_helper.from_array(np.array(0, np.int8), "zero"),
    ]
    pair, reads = "", "h"
    if is_second_quantized:
        pair, reads = (
            "[q] hq = QuantizeLinear(h, scale, zero) [dq] hd = DequantizeLinear(hq, scale, zero)",
            "hd",
        )
    return graph_model(
        f"(float[1,250] x) => (float[1,250] y) {{ [first] h = MatMul(x, w1) {pair} "
        f"[second] y = MatMul({reads}, w2) }}",
        weights,
    )


def _bundle(
    folder: Path,
    model: onnx.ModelProto,
    *,
    version: str = "1.0.0",
    variant: str = "cpu",
    options: dict[str, str] | None = None,
) -> Path:
    (folder / "model" / variant).mkdir(parents=True)
    (folder / "golden").mkdir()
    save(model, folder / "model" / variant / "model.onnx")
    sample: dict[str, Tensor] = {"x": np.zeros((1, 250), np.float32)}
    write_golden(folder / "golden/golden.npz", Golden(inputs=(sample,), outputs=(sample,)))
    offsets = tensor_offsets(folder / "model" / variant)["model.onnx"]
    facts = VariantFacts(
        profile=variant,
        profile_sha256="ab" * 32,
        precision="fp32",
        requires=Requirements(arch=("x86_64",)),
        toolchain=Toolchain(onnxruntime="1.31.1"),
        files=(entry(folder, f"model/{variant}/model.onnx", offsets),),
        accuracy=_accuracy(0.999),
        tolerances={"y": GoldenTolerance(cosine_min=0.99, nrmse_max=0.1)},
        placement=Placement(provider=CPU, taken=2, total=2, verified=True),
    )
    manifest = Manifest(
        facts=BundleFacts(
            name="two",
            version=version,
            release=1,
            source_sha256="cd" * 32,
            files=(entry(folder, "golden/golden.npz"),),
        ),
        variants=(
            Variant(
                name=variant,
                provider=CPU,
                device="cpu",
                provider_options=options or {},
                facts=facts,
            ),
        ),
    )
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    private, _ = write_key_pair(generate_key(), folder.with_name(f"{folder.name}-key"))
    sign_folder(folder, load_private_key(private))
    return folder


def _accuracy(value: float) -> Accuracy:
    return Accuracy(
        metric="cosine", value=value, float_value=1.0, budget=0.99, sample_count=8, provider=CPU
    )


def _report(*, recipe: str, value: float, sha256: str, note: str = "") -> Report:
    return Report(
        name="two",
        version="1.0.0",
        release=1,
        created_at="",
        model=ModelReport(
            file="two.onnx",
            sha256="cd" * 32,
            size_bytes=400_000,
            opset=17,
            inputs=(),
            outputs=(),
            node_count=2,
        ),
        samples=SamplesReport(
            calibration_count=5,
            search_count=2,
            held_out_count=3,
            golden_count=3,
            golden_bytes=9,
            is_random=False,
        ),
        variants=(
            VariantReport(
                name="cpu",
                profile="cpu",
                precision="a8w8",
                provider=CPU,
                device="cpu",
                size_bytes=9,
                degraded=False,
                accuracy=_accuracy(value),
                placement=Placement(provider=CPU, taken=2, total=2, verified=True),
                requires=Requirements(),
                toolchain=Toolchain(onnxruntime="1.31.1"),
                tolerances={},
                recipe=(recipe,),
                attempts=(),
                notes=(note,) if note else (),
                files=(ReportedFile(path="model/cpu/model.onnx", size_bytes=9, sha256=sha256),),
                timing=Timing(latency_ms=2.0, float_latency_ms=4.0),
            ),
        ),
        refused=(),
        notes=(),
        tools={"onnx": "1.23"},
    )


def test_a_bundle_equals_its_own_archive(tmp_path: Path) -> None:
    folder = _bundle(tmp_path / "a", _model(changed=1.0))
    pack(folder, tmp_path / "a.edgepack")
    found = compare(read_compared(folder), read_compared(tmp_path / "a.edgepack"))
    assert found.equal_for_devices is True
    assert {file.state for file in found.files} == {"equal"}
    assert found.differences == ()
    assert found.variants[0].differences == ()
    assert found.transfer is not None
    assert found.transfer.fetch_bytes == 0


def test_only_the_changed_tensor_is_fetched(tmp_path: Path) -> None:
    a = read_compared(_bundle(tmp_path / "a", _model(changed=1.0)))
    b = read_compared(_bundle(tmp_path / "b", _model(changed=2.0), version="1.1.0"))
    found = compare(a, b)
    transfer = found.variants[0].transfer
    assert transfer is not None
    assert KEPT_BYTES <= transfer.fetch_bytes < 1.1 * KEPT_BYTES
    assert transfer.share == pytest.approx(transfer.fetch_bytes / transfer.wanted_bytes, abs=1e-6)
    assert transfer == found.transfer
    assert found.equal_for_devices is False
    assert [(file.path, file.state) for file in found.files] == [
        ("golden/golden.npz", "equal"),
        ("model/cpu/model.onnx", "changed"),
    ]
    assert found.differences == (Difference(what="version", a="1.0.0", b="1.1.0"),)


def test_a_variant_that_is_new_is_fetched_but_for_the_golden_samples(tmp_path: Path) -> None:
    a = read_compared(_bundle(tmp_path / "a", _model(changed=1.0), variant="fp32"))
    b = read_compared(_bundle(tmp_path / "b", _model(changed=1.0), variant="cpu"))
    found = {variant.name: variant for variant in compare(a, b).variants}
    assert [found[name].presence for name in ("fp32", "cpu")] == ["only a", "only b"]
    transfer = found["cpu"].transfer
    assert transfer is not None
    assert transfer.fetch_bytes == b.variants[0].side.size_bytes
    assert found["fp32"].transfer is None
    everything = compare(a, b).transfer
    assert everything is not None
    assert everything.fetch_bytes == 0, "a device that held fp32 has these chunks"


def test_nodes_that_changed_precision_are_named(tmp_path: Path) -> None:
    a = read_compared(_bundle(tmp_path / "a", _model(changed=1.0)))
    b = read_compared(_bundle(tmp_path / "b", _model(changed=1.0, is_second_quantized=True)))
    variant = compare(a, b).variants[0]
    assert variant.quantized_only_in_b == ("second (MatMul)",)
    assert variant.quantized_only_in_a == ()
    assert variant.b is not None
    assert (variant.b.quantized_nodes, variant.b.float_nodes) == (1, 1)


def test_equal_files_that_run_differently_are_not_equal_for_devices(tmp_path: Path) -> None:
    a = read_compared(_bundle(tmp_path / "a", _model(changed=1.0)))
    b = read_compared(_bundle(tmp_path / "b", _model(changed=1.0), options={"arena": "0"}))
    found = compare(a, b)
    assert found.variants[0].has_equal_files is True
    assert found.equal_for_devices is False
    assert found.variants[0].differences == (Difference(what="provider arena", a="", b="0"),)


def test_an_operator_between_conversions_is_quantized_and_one_before_an_output_is_not() -> None:
    scale = ["scale", "zero"]
    nodes = [
        helper.make_node("DequantizeLinear", ["xq", *scale], ["x"]),
        helper.make_node("Relu", ["x"], ["r"], name="inside"),
        helper.make_node("QuantizeLinear", ["r", *scale], ["rq"]),
        helper.make_node("DequantizeLinear", ["rq", *scale], ["rd"]),
        helper.make_node("Softmax", ["rd"], ["y"], name="after"),
        helper.make_node("QLinearConv", ["xq"], ["z"], name="integer"),
        helper.make_node("QAttention", ["xq"], ["a"], name="own", domain="com.microsoft"),
    ]
    found = node_precision(helper.make_model(helper.make_graph(nodes, "g", [], [])))
    assert found is not None
    assert found.quantized == {"inside (Relu)", "integer (QLinearConv)", "own (QAttention)"}
    assert found.float_ == {"after (Softmax)"}
    context = [helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft")]
    assert node_precision(helper.make_model(helper.make_graph(context, "g", [], []))) is None


def test_reports_tell_settings_and_notes_but_not_what_is_fetched(tmp_path: Path) -> None:
    paths = []
    for name, report in (
        ("a", _report(recipe="quantize: ops compute, weights int8", value=0.991, sha256="ab" * 32)),
        (
            "b",
            _report(
                recipe="quantize: ops all, weights int8",
                value=0.998,
                sha256="cd" * 32,
                note="One node stays float.",
            ),
        ),
    ):
        paths.append(tmp_path / f"{name}.report.json")
        paths[-1].write_bytes(encode_report(report))
    done = CliRunner().invoke(command, [str(path) for path in paths])
    assert done.exit_code == 0, done.output
    for text in (
        "Different: 0 of 1 file equal",
        "= a8w8",
        "cosine 0.9910 (≥ 0.9900) → cosine 0.9980 (≥ 0.9900)",
        "= 2.00 ms",
        "cpu: quantize.ops: compute → all",
        "cpu: B only: One node stays float.",
        "changed   1 file: model/cpu/model.onnx",
        "transfer  not known: a report has no chunks of files",
    ):
        assert text in done.output
    same = compare(read_compared(paths[0]), read_compared(paths[0]))
    assert same.equal_for_devices is None
    assert same.transfer is None


def test_the_command_tells_bytes_and_gives_json(tmp_path: Path) -> None:
    a = _bundle(tmp_path / "a", _model(changed=1.0))
    b = _bundle(tmp_path / "b", _model(changed=2.0))
    done = CliRunner().invoke(command, [str(a), str(b)])
    assert "transfer  a device that holds all of A fetches" in done.output
    assert "equal     1 file: golden/golden.npz" in done.output
    equal = CliRunner().invoke(command, [str(a), str(a)])
    assert "Equal: every file has the same bytes." in equal.output
    assert "nothing" in equal.output
    document = json.loads(CliRunner().invoke(command, [str(a), str(b), "--json"]).output)
    assert document["variants"][0]["transfer"]["fetch_bytes"] >= KEPT_BYTES
    assert document["equal_for_devices"] is False


@pytest.mark.parametrize("content", [b"{}", b"{nonsense", b'{"format": 1, "name": 3}'])
def test_a_json_that_is_no_report_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"other\.json is not a report of a build") as caught:
        read_compared(path)
    assert caught.value.remedy == "give a bundle, or the .report.json next to a bundle"


def test_a_comparison_is_read_back_from_its_json(tmp_path: Path) -> None:
    side = read_compared(_bundle(tmp_path / "a", _model(changed=1.0)))
    found = compare(side, side)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def test_no_cell_loses_its_end_however_long_the_row(tmp_path: Path) -> None:
    name = "a-profile-of-our-own-for-the-cameras-of-the-second-generation-" * 2
    metrics = ("our_own_package.metrics:recall_at_one", "their_package.metrics:recall")
    for metric in metrics:
        variant = make_variant(name=name)
        accuracy = msgspec.structs.replace(variant.accuracy, metric=metric)
        report = make_report(msgspec.structs.replace(variant, accuracy=accuracy))
        (tmp_path / f"{metric}.json").write_bytes(encode_report(report))
    done = CliRunner().invoke(command, [str(tmp_path / f"{metric}.json") for metric in metrics])
    for text in (name, *metrics):
        assert text in done.output
    assert "…" not in done.output


def test_delta_tells_chunks_tensors_and_bytes(tmp_path: Path) -> None:
    a = _bundle(tmp_path / "a", _model(changed=1.0))
    b = _bundle(tmp_path / "b", _model(changed=2.0), version="1.1.0")
    document = json.loads(CliRunner().invoke(delta, [str(a), str(b), "--json"]).output)
    (found,) = document["variants"]
    assert found["tensors"] == {
        "equal": 3,
        "changes": [{"name": "w2", "a_bytes": KEPT_BYTES, "b_bytes": KEPT_BYTES}],
    }
    head_bytes = sum((b / name).stat().st_size for name in ("manifest.json", "model.sig"))
    assert document["head_bytes"] == head_bytes
    assert found["wire_bytes"] == found["transfer"]["fetch_bytes"] + head_bytes
    done = CliRunner().invoke(delta, [str(a), str(b)])
    assert done.exit_code == 0, done.output
    for text in (" 1 of 4 ", "cpu: w2 (200 KB)", "203 KB"):
        assert text in done.output


def test_delta_of_a_variant_that_the_old_bundle_has_not_is_all_of_it(tmp_path: Path) -> None:
    a = _bundle(tmp_path / "a", _model(changed=1.0), variant="fp32")
    b = _bundle(tmp_path / "b", _model(changed=1.0), variant="cpu")
    done = CliRunner().invoke(delta, [str(a), str(b)])
    assert "cpu (new)" in done.output
    assert "fp32" not in done.output


def test_delta_of_reports_says_that_bundles_are_needed(tmp_path: Path) -> None:
    report = _report(recipe="quantize: ops compute", value=0.9, sha256="ab" * 32)
    path = tmp_path / "a.report.json"
    path.write_bytes(encode_report(report))
    failed = CliRunner().invoke(delta, [str(path), str(path)]).exception
    assert isinstance(failed, BundleError)
    assert failed.problem == "a report has no chunks of files"
    assert failed.remedy == "give the bundles of the reports"


def test_weights_outside_the_model_file_are_told_apart_too(tmp_path: Path) -> None:
    marks = []
    for changed in (1.0, 2.0):
        path = tmp_path / f"{changed}" / "model.onnx"
        path.parent.mkdir()
        save_with_external_data(_model(changed=changed), path)
        marks.append(mark_tensors(onnx.load(path, load_external_data=False), path.parent))
    found = compare_tensors(*marks)
    assert found is not None
    assert (found.equal, [one.name for one in found.changes]) == (3, ["w2"])
    inside = mark_tensors(_model(changed=1.0), tmp_path)
    assert compare_tensors(inside, marks[0]) == TensorComparison(equal=4, changes=())


def test_tensors_that_came_and_went_are_named(tmp_path: Path) -> None:
    model = _model(changed=1.0)
    before = mark_tensors(model, tmp_path)
    model.graph.initializer[0].name = "renamed"
    found = compare_tensors(before, mark_tensors(model, tmp_path))
    assert found is not None
    changes = [(one.name, one.a_bytes, one.b_bytes) for one in found.changes]
    assert changes == [("renamed", None, KEPT_BYTES), ("w1", KEPT_BYTES, None)]
