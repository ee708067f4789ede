"""A manifest of a pipeline: a component for each stage, and variants that name one of each."""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from edgepack.bundle.archive import content_starts, pack, unpack
from edgepack.bundle.manifest import (
    Manifest,
    Pipeline,
    PipelineVariant,
    decode_manifest,
    encode_manifest,
    join_stages,
)
from edgepack.errors import BundleError
from edgepack.stages.wiring import PipelineInput, StageWiring, Wiring
from tests.unit.bundle.test_hostile_archives import read_entries, write_entries

WIRING = Wiring(
    inputs=(PipelineInput(name="a", kind="tensor", dtype="float32", shape=(1, 4)),),
    outputs=("c",),
    stages=(
        StageWiring(name="first", inputs={"x": "a"}, outputs={"y": "b"}),
        StageWiring(name="second", inputs={"x": "b"}, outputs={"y": "c"}),
    ),
)


@pytest.fixture
def manifest(bundle: Path) -> Manifest:
    """Return a manifest with two variants that share their first stage."""
    plain = decode_manifest((bundle / "manifest.json").read_bytes())
    one = plain.variant("cpu")

    def part(stage: str, name: str, provider: str = one.provider, device: str = "cpu") -> Any:
        place = f"model/{stage}.{name}/"
        files = tuple(
            replace(file, path=file.path.replace(f"{one.folder}/", place))
            for file in one.facts.files
        )
        facts = replace(one.facts, files=files)
        return replace(
            one, name=name, component=stage, facts=facts, provider=provider, device=device
        )

    npu = part("second", "npu", "QNNExecutionProvider", "npu")
    graphs = {"first": (part("first", "cpu"),), "second": (part("second", "cpu"), npu)}
    facts = replace(one.facts, files=())
    pipeline = Pipeline(
        wiring=WIRING,
        variants=tuple(
            PipelineVariant(name=name, stages={"first": "cpu", "second": name}, facts=facts)
            for name in ("npu", "cpu")
        ),
    )
    return Manifest(
        facts=replace(plain.facts, pipeline=pipeline), variants=join_stages(pipeline, graphs)
    )


def test_manifest_of_a_pipeline_is_read_as_it_was_written(manifest: Manifest) -> None:
    content = encode_manifest(manifest)
    assert decode_manifest(content) == manifest
    npu, cpu = manifest.variants
    assert (npu.provider, npu.device, cpu.provider) == (
        "QNNExecutionProvider",
        "npu",
        "CPUExecutionProvider",
    )
    assert npu.parts[0] is not npu.parts[1]
    assert npu.parts[0] == cpu.parts[0]
    paths = [file.path for file in manifest.files]
    assert len(set(paths)) == len(paths)
    assert [graph.folder for graph in manifest.graphs] == [
        "model/first.cpu",
        "model/second.npu",
        "model/second.cpu",
    ]
    assert manifest.memory_bytes("cpu") == sum(file.size_bytes for file in cpu.facts.files)


def test_manifest_of_a_plain_model_has_no_key_of_pipelines(bundle: Path) -> None:
    plain = decode_manifest((bundle / "manifest.json").read_bytes())
    assert b'"pipeline"' not in encode_manifest(plain)


def facts(document: Any) -> Any:
    return document["additional_metadata"]["edgepack"]


CASES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a variant that leaves a stage out": (
        lambda d: facts(d)["pipeline"]["variants"][0]["stages"].pop("first"),
        "each of the 2 stages",
    ),
    "a variant of a stage that is not there": (
        lambda d: facts(d)["pipeline"]["variants"][0]["stages"].update(second="gone"),
        "'gone' of stage 'second' is used and not a component's",
    ),
    "a variant of a stage that nothing uses": (
        lambda d: facts(d)["pipeline"]["variants"].pop(0),
        "'npu' of stage 'second' is not used",
    ),
    "two variants with a name": (
        lambda d: facts(d)["pipeline"]["variants"][0].update(name="cpu"),
        "two variants",
    ),
    "a tensor that nothing gives": (
        lambda d: facts(d)["pipeline"]["wiring"]["stages"][1]["inputs"].update(x="z"),
        "gives the tensor 'z'",
    ),
    "stages that wait for each other": (
        lambda d: facts(d)["pipeline"]["wiring"]["stages"][0]["inputs"].update(x="c"),
        "2 nodes wait",
    ),
    "an unknown step": (
        lambda d: facts(d)["pipeline"]["wiring"].update(steps=[{"kind": "shell"}]),
        "Invalid value 'shell'",
    ),
    "a stage whose name is a path": (
        lambda d: facts(d)["pipeline"]["wiring"]["stages"][0].update(name="../x"),
        "matching regex",
    ),
    "a component more": (
        lambda d: d["components"].update(third=d["components"]["first"]),
        "lies in 'model/first.cpu'",
    ),
    "no components": (lambda d: d.pop("components"), "components"),
    "a component without a variant": (
        lambda d: d["components"]["first"]["variants"].clear(),
        "no variant",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_malformed_pipelines_are_rejected(manifest: Manifest, name: str) -> None:
    document = json.loads(encode_manifest(manifest))
    change, problem = CASES[name]
    change(document)
    with pytest.raises(BundleError) as caught:
        decode_manifest(json.dumps(document).encode())
    assert problem in str(caught.value)


def _pack(manifest: Manifest, bundle: Path, folder: Path) -> bytes:
    """Return the archive of a pipeline whose stages have the same files."""
    for graph in manifest.graphs:
        shutil.copytree(bundle / "model" / "cpu", folder / graph.folder)
    for file in manifest.facts.files:
        (folder / file.path).parent.mkdir(exist_ok=True)
        shutil.copyfile(bundle / file.path, folder / file.path)
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    shutil.copyfile(bundle / "model.sig", folder / "model.sig")
    pack(folder, folder.with_suffix(".edgepack"))
    return folder.with_suffix(".edgepack").read_bytes()


def test_archive_holds_equal_files_of_stages_once(
    manifest: Manifest, bundle: Path, tmp_path: Path
) -> None:
    entries = read_entries(_pack(manifest, bundle, tmp_path / "a"))
    links = {one.name: one.linkname for one, _ in entries if one.islnk()}
    files = [file.path for file in manifest.graphs[0].facts.files]
    others = [graph.folder for graph in manifest.graphs[1:]]
    assert len(links) == len(files) * len(others)
    sizes = [(tmp_path / "a" / name).stat().st_size for name in ("manifest.json", "model.sig")]
    starts = content_starts(manifest, *sizes)
    with tarfile.open(tmp_path / "a.edgepack") as archive:
        places = {one.name: one.offset_data for one in archive}
    assert starts == places | {path: places[first] for path, first in links.items()}
    unpack(tmp_path / "a.edgepack", tmp_path / "b")
    for path, first in links.items():
        assert (tmp_path / "b" / path).samefile(tmp_path / "b" / first)
    names = [path for path in (tmp_path / "b").rglob("*") if path.is_file()]
    assert len(names) == len(entries)


@pytest.mark.parametrize("change", ["other file", "own bytes", "no link", "before its file"])
def test_link_to_anything_but_the_first_equal_file_is_rejected(
    manifest: Manifest, bundle: Path, tmp_path: Path, change: str
) -> None:
    entries = read_entries(_pack(manifest, bundle, tmp_path / "a"))
    at = next(place for place, (one, _) in enumerate(entries) if one.islnk())
    link = entries[at][0]
    if change == "other file":
        link.linkname = "manifest.json"
    elif change == "own bytes":
        link.size = 3
    elif change == "no link":
        content = next(data for one, data in entries if one.name == link.linkname)
        link.type, link.size = tarfile.REGTYPE, len(content)
        entries[at] = (link, content)
    else:
        entries.insert(2, entries.pop(at))
    (tmp_path / "bad.edgepack").write_bytes(write_entries(entries))
    with pytest.raises(
        BundleError, match=r"must be a hard link to|a size that is 3|0 bytes, the man"
    ):
        unpack(tmp_path / "bad.edgepack", tmp_path / "b")
    assert not (tmp_path / "b").exists()
