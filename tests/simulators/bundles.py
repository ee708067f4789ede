"""Small bundles that are real: ONNX models that run, golden samples, a manifest, a signature."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.bundle.chunks import entry
from edgepack.bundle.golden import Golden, Tensor, write_golden
from edgepack.bundle.keys import PrivateKey
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    SIGNATURE_FILE,
    BundleFacts,
    Firmware,
    Manifest,
    Requirements,
    decode_manifest,
    encode_manifest,
)
from edgepack.bundle.signature import sign_folder
from edgepack.packager.bundling.deltas import write_deltas
from edgepack.wire.orders import BundleRef, Desired, FileRef, RunModel
from tests.simulators.manifests import CPU, make_variant

WIDTH = 256
"""Each of a model's two weights has WIDTH x WIDTH float32: 256 KiB, four chunks."""


@dataclass(frozen=True, kw_only=True)
class ExampleBundle:
    """A signed bundle on the disk with its name in an offer."""

    folder: Path
    ref: BundleRef
    manifest: FileRef
    signature: FileRef

    def order(
        self,
        sequence: int,
        *,
        soak_s: float = 0.0,
        min_inferences: int = 0,
        deadline_s: float | None = None,
        rollback: bool = False,
        expires_at: float | None = None,
        shadow: float | None = None,
    ) -> RunModel:
        return RunModel(
            sequence=sequence,
            rollout=f"r{sequence}",
            bundle=self.ref,
            manifest=self.manifest,
            signature=self.signature,
            soak_s=soak_s,
            min_inferences=min_inferences,
            deadline_s=deadline_s,
            rollback=rollback,
            issued_at=0.0,
            expires_at=expires_at,
            shadow=shadow,
        )

    def desired(self, sequence: int, *, soak_s: float = 0.0) -> Desired:
        return self.desired_of(self.order(sequence, soak_s=soak_s))

    def desired_of(self, order: RunModel) -> Desired:
        return Desired(sequence=order.sequence, models={self.ref.name: order})


def make_bundle(
    folder: Path,
    key: PrivateKey,
    *,
    release: int = 1,
    name: str = "tiny",
    variants: Sequence[str] = ("cpu",),
    provider: str | Mapping[str, str] = CPU,
    requires: Requirements | None = None,
    hooks: Mapping[str, str] | None = None,
    firmware: Mapping[Firmware, bytes] | None = None,
    is_wrong: bool = False,
    tuned_from: ExampleBundle | None = None,
    spoil_delta: Callable[[bytes], bytes] = lambda content: content,
    slow_layers: int = 0,
    slow_above: float | None = None,
    input_name: str = "x",
    tokens: Mapping[str, str] | None = None,
) -> ExampleBundle:
    """Build and sign a bundle; its first weight is the same in every release.

    Args:
        folder: Is made.
        key: Signs.
        release: Makes the second weight, and the version `1.<release>.0`.
        name: Of the model.
        variants: Names; each has the same model.
        provider: Of every variant, or by variant.
        requires: Of every variant.
        hooks: Shell scripts by path below `hooks/`.
        firmware: Artefacts with their content.
        is_wrong: Whether the model's outputs differ from the golden outputs.
        tuned_from: An older bundle: the second weight is nearly the old weight, and a delta from
            the old bundle is in the bundle.
        spoil_delta: Bytes in place of the delta.
        slow_layers: Further layers, which change no output and take their time.
        slow_above: If given, these layers run only if the first value of the input is above.
        input_name: Of the model's input.
        tokens: By variant: compatibility string.
    """
    first = _weight(0)
    second = _weight(release) if tuned_from is None else _tuned(tuned_from.ref.release, release)
    folder.mkdir(parents=True)
    inputs = [np.random.default_rng(i).standard_normal((1, WIDTH)) for i in range(3)]
    feeds: tuple[dict[str, Tensor], ...] = tuple({input_name: x.astype(np.float32)} for x in inputs)
    outputs: tuple[dict[str, Tensor], ...] = tuple(
        {"y": np.maximum(feed[input_name] @ first, 0) @ second} for feed in feeds
    )
    (folder / GOLDEN_FILE).parent.mkdir()
    write_golden(folder / GOLDEN_FILE, Golden(inputs=feeds, outputs=outputs))
    built = []
    for variant in variants:
        path = f"model/{variant}/model.onnx"
        (folder / path).parent.mkdir(parents=True)
        last = -second if is_wrong else second
        model = _model(first, last, slow_layers, slow_above)
        model.graph.input[0].name = model.graph.node[0].input[0] = input_name
        content = model.SerializeToString()
        (folder / path).write_bytes(content)
        starts = [content.find(weight.tobytes()) for weight in (first, second)]
        files = (entry(folder, path, starts),)
        name_of = provider if isinstance(provider, str) else provider[variant]
        device = "cpu" if name_of == CPU else "npu"
        built.append(
            make_variant(
                variant,
                provider=name_of,
                device=device,
                files=files,
                requires=requires,
                token=(tokens or {}).get(variant, ""),
            )
        )
    shared = [GOLDEN_FILE]
    for path, script in (hooks or {}).items():
        hook = folder / "hooks" / path
        hook.parent.mkdir(parents=True, exist_ok=True)
        hook.write_text(script)
        hook.chmod(0o755)
        shared.append(f"hooks/{path}")
    for artefact, image in (firmware or {}).items():
        (folder / artefact.file).parent.mkdir(exist_ok=True)
        (folder / artefact.file).write_bytes(image)
        shared.append(artefact.file)
    if tuned_from is not None:
        for delta in write_deltas(folder, name, built, tuned_from.folder):
            assert delta.file is not None
            written = folder / delta.file.path
            written.write_bytes(spoil_delta(written.read_bytes()))
            shared.append(delta.file.path)
    facts = BundleFacts(
        name=name,
        version=f"1.{release}.0",
        release=release,
        source_sha256=hashlib.sha256(second.tobytes()).hexdigest(),
        files=tuple(entry(folder, path) for path in shared),
        firmware=tuple(firmware or ()),
    )
    manifest = Manifest(facts=facts, variants=tuple(built))
    (folder / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    sign_folder(folder, key)
    return describe_bundle(folder)


def _tuned(seed: int, step: int) -> np.ndarray:
    noise = np.random.default_rng(step).standard_normal((WIDTH, WIDTH))
    weight: np.ndarray = (_weight(seed) + 1e-5 * noise).astype(np.float32)
    return weight


def expected_output(x: np.ndarray, release: int) -> np.ndarray:
    """Return the answer of a release's model to float32 (1, WIDTH)."""
    answer: np.ndarray = np.maximum(x @ _weight(0), 0) @ _weight(release)
    return answer


def describe_bundle(folder: Path) -> ExampleBundle:
    """Return a signed bundle's name in an offer, unchecked."""
    facts = decode_manifest((folder / MANIFEST_FILE).read_bytes()).facts
    return ExampleBundle(
        folder=folder,
        ref=BundleRef(
            name=facts.name, version=facts.version, release=facts.release, digest=_digest(folder)
        ),
        manifest=_file_ref(folder, MANIFEST_FILE),
        signature=_file_ref(folder, SIGNATURE_FILE),
    )


def _digest(folder: Path) -> str:
    from edgepack.bundle.signature import root_digest
    from edgepack.bundle.tree import list_files

    files = {
        path: hashlib.sha256((folder / path).read_bytes()).hexdigest()
        for path in list_files(folder)
        if path != SIGNATURE_FILE
    }
    return root_digest(files)


def _file_ref(folder: Path, path: str) -> FileRef:
    content = (folder / path).read_bytes()
    return FileRef(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _weight(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    weight: np.ndarray = (rng.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32)
    return weight


def _model(
    first: np.ndarray, second: np.ndarray, slow_layers: int = 0, slow_above: float | None = None
) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")]
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], "one"),
        helper.make_node("Relu", ["a"], ["b"], "two"),
    ]
    slow, last = [], "b"
    if slow_layers:
        weights.append(numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "same"))
    for number in range(slow_layers):
        slow.append(helper.make_node("MatMul", [last, "same"], [f"slow{number}"]))
        last = f"slow{number}"
    if slow_above is None:
        nodes += slow
    else:
        weights += [
            numpy_helper.from_array(np.array([0], np.int64), "zero"),
            numpy_helper.from_array(np.array([slow_above], np.float32), "above"),
        ]
        nodes += [
            helper.make_node("Gather", ["x", "zero"], ["value"], axis=1),
            helper.make_node("Squeeze", ["value"], ["scalar"]),
            helper.make_node("Squeeze", ["above"], ["limit"]),
            helper.make_node("Greater", ["scalar", "limit"], ["is_above"]),
            helper.make_node(
                "If",
                ["is_above"],
                ["chosen"],
                then_branch=_branch("slow", slow, last),
                else_branch=_branch("fast", [helper.make_node("Identity", ["b"], ["as"])], "as"),
            ),
        ]
        last = "chosen"
    nodes.append(helper.make_node("MatMul", [last, "second"], ["y"], "three"))
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _branch(name: str, nodes: Sequence[onnx.NodeProto], output: str) -> onnx.GraphProto:
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, WIDTH])
    return helper.make_graph(nodes, name, [], [value])
