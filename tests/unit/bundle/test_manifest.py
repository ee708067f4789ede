"""A manifest is read strictly: every key that does not fit is refused by its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle.manifest import (
    MAX_MANIFEST_BYTES,
    decode_manifest,
    encode_manifest,
)
from edgepack.errors import BundleError


def cpu(document: Any) -> Any:
    return document["components"]["model"]["variants"]["cpu"]


def cpu_facts(document: Any) -> Any:
    return cpu(document)["additional_metadata"]["edgepack"]


def facts(document: Any) -> Any:
    return document["additional_metadata"]["edgepack"]


def set_in(find: Callable[[Any], Any], key: str, value: Any) -> Callable[[Any], object]:
    return lambda document: find(document).update({key: value})


def reference(times: int = 1, **changed: object) -> Callable[[Any], object]:
    feature = {"tensor": "x", "name": "level", "words": "level", "mean": 0.0, "spread": 1.0}
    return set_in(facts, "reference", [{**feature, "samples": 9, **changed}] * times)


VARIANT = "components.model.variants.cpu"
CASES: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "a feature without a spread": (reference(spread=0.0), "feature 'level'", "reference"),
    "a feature of no sample": (reference(samples=0), ">= 1", "samples"),
    "a feature of another kind": (reference(kind="rank"), "Invalid enum value", "kind"),
    "a feature with a control character": (reference(words="a\x1b"), "matching regex", "words"),
    "a feature twice": (reference(times=2), "a feature of drift occurs twice", "reference"),
    "too many features": (reference(times=257), "length <= 256", "reference"),
    "another version": (lambda d: d.update(package_version="9"), "'9'", "package_version"),
    "a newer format": (set_in(facts, "format", 3), "format version 3, this edgepack reads 1", ""),
    "no variant": (lambda d: d["components"]["model"]["variants"].clear(), "no variant", ""),
    "a second component": (
        lambda d: d["components"].update(other={}),
        "unknown field `other`",
        "components",
    ),
    "a variant whose name is a path": (
        lambda d: d["components"]["model"]["variants"].update({"../x": cpu(d)}),
        "matching regex",
        "components.model.variants",
    ),
    "another folder": (
        set_in(cpu, "variant_directory", "model/other"),
        "lies in 'model/other'",
        f"{VARIANT}.variant_directory",
    ),
    "a device in capitals": (set_in(cpu, "device", "CPU"), "Invalid enum value", VARIANT),
    "another device for the CPU provider": (set_in(cpu, "device", "npu"), "device 'npu'", VARIANT),
    "no device for a provider that has several": (
        set_in(cpu, "ep", "QNNExecutionProvider"),
        "of QNNExecutionProvider has the device None",
        f"{VARIANT}.device",
    ),
    "a model file outside": (
        lambda d: cpu(d)["executor_info"]["ort"].update(model_file="../qnn-htp/model.onnx"),
        "leads out",
        f"{VARIANT}.executor_info.ort.model_file",
    ),
    "a model file that is not listed": (
        lambda d: cpu(d)["executor_info"]["ort"].update(model_file="other.onnx"),
        "not among its files",
        f"{VARIANT}.executor_info.ort.model_file",
    ),
    "an option that is not a string": (
        lambda d: cpu(d)["executor_info"]["ort"].update(session_options={"a": 1}),
        "Expected `str`, got `int`",
        VARIANT,
    ),
    "a file outside its variant": (
        lambda d: cpu_facts(d)["files"][0].update(path="elsewhere/model.onnx"),
        "not among its files",
        VARIANT,
    ),
    "another variant's file": (
        lambda d: cpu_facts(d)["files"][1].update(path="model/qnn-htp/weights.bin"),
        "does not lie in 'model/cpu/'",
        VARIANT,
    ),
    "a variant's file that leads out": (
        lambda d: cpu_facts(d)["files"][1].update(path="model/cpu/../../../evil"),
        "leads out",
        f"{VARIANT}.additional_metadata.edgepack.files",
    ),
    "a variant's file twice": (
        lambda d: cpu_facts(d)["files"].append(cpu_facts(d)["files"][1]),
        "is listed twice",
        f"{VARIANT}.additional_metadata.edgepack.files",
    ),
    "a variant's file whose chunks do not add up": (
        lambda d: cpu_facts(d)["files"][1].update(size_bytes=10**9),
        "bytes together, the file has 1000000000",
        f"{VARIANT}.additional_metadata.edgepack.files",
    ),
    "a path with a backslash": (
        lambda d: facts(d)["files"][0].update(path="a\\b"),
        "backslash",
        "additional_metadata.edgepack.files",
    ),
    "an absolute path": (
        lambda d: facts(d)["files"][0].update(path="/etc/passwd"),
        "is absolute",
        "additional_metadata.edgepack.files",
    ),
    "a path twice": (
        lambda d: facts(d)["files"].append(facts(d)["files"][0]),
        "is listed twice",
        "additional_metadata.edgepack.files",
    ),
    "the manifest itself": (
        lambda d: facts(d)["files"][0].update(path="manifest.json"),
        "'manifest.json' is listed twice",
        "additional_metadata.edgepack.files",
    ),
    "a model file of no variant": (
        lambda d: facts(d)["files"][0].update(path="model/stray"),
        "belongs to no variant",
        "additional_metadata.edgepack.files",
    ),
    "a file that is a folder": (
        lambda d: facts(d)["files"][0].update(path="report.json/golden"),
        "is a file and the folder of",
        "",
    ),
    "a digest in capitals": (
        lambda d: facts(d)["files"][0].update(sha256="AB" * 32),
        "matching regex",
        "additional_metadata.edgepack.files[0].sha256",
    ),
    "a digest with a line behind it": (
        lambda d: facts(d)["files"][0].update(sha256="ab" * 32 + "\n"),
        "matching regex",
        "additional_metadata.edgepack.files[0].sha256",
    ),
    "a negative size": (
        lambda d: facts(d)["files"][0].update(size_bytes=-1),
        ">= 0",
        "additional_metadata.edgepack.files[0].size_bytes",
    ),
    "chunks that do not add up": (
        lambda d: facts(d)["files"][2].update(size_bytes=3),
        "have 2 bytes together, the file has 3",
        "additional_metadata.edgepack.files",
    ),
    "a chunk above 120 KiB": (
        lambda d: facts(d)["files"][2]["chunks"].update(sizes=[122881]),
        "<= 122880",
        "additional_metadata.edgepack.files[2].chunks.sizes[0]",
    ),
    "an empty chunk": (
        lambda d: facts(d)["files"][2]["chunks"].update(sizes=[2, 0]),
        ">= 1",
        "additional_metadata.edgepack.files[2].chunks.sizes[1]",
    ),
    "too few chunk digests": (
        lambda d: facts(d)["files"][2]["chunks"].update(sha256=""),
        "1 chunks but 0 digests",
        "additional_metadata.edgepack.files",
    ),
    "a release beyond what JSON holds": (
        set_in(facts, "release", 2**53 + 1),
        "9007199254740992",
        "additional_metadata.edgepack.release",
    ),
    "a name that is a path": (set_in(facts, "name", "../x"), "matching regex", "edgepack.name"),
    "an escape sequence": (
        set_in(facts, "version", "\x1b[2J"),
        "matching regex",
        "edgepack.version",
    ),
    "an unknown fact": (set_in(cpu_facts, "color", "red"), "unknown field `color`", VARIANT),
    "a missing fact": (lambda d: cpu_facts(d).pop("placement"), "missing required", VARIANT),
}


@pytest.mark.parametrize("case", CASES)
def test_a_manifest_is_refused_that_has(case: str, bundle: Path) -> None:
    change, message, key = CASES[case]
    document = json.loads((bundle / "manifest.json").read_bytes())
    change(document)
    with pytest.raises(BundleError) as caught:
        decode_manifest(json.dumps(document).encode())
    assert message in caught.value.problem
    assert key in (caught.value.found_in or "")
    assert (caught.value.found_in or "").startswith("manifest.json")


BYTES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not valid JSON"),
    "no JSON": (b"{", "not valid JSON"),
    "no UTF-8": (b'{"a": "\xff"}', "not valid JSON"),
    "a list": (b"[]", "Expected `object`, got `array`"),
    "a key twice": (b'{"layout": 1, "layout": 1}', "'layout' stands twice"),
    "a key twice among very many": (
        b"{" + b"".join(b'"%d":0,' % number for number in range(200_000)) + b'"199999":0}',
        "'199999' stands twice",
    ),
    "NaN": (b'{"layout": NaN}', "NaN is not finite"),
    "a number beyond floats": (b'{"layout": 1e999}', "1e999 is not finite"),
    "a number of many digits": (b'{"layout": ' + b"9" * 10_000 + b"}", "not valid JSON"),
    "deep nesting": (b"[" * 200_000, "not valid JSON"),
    "too much": (b" " * (MAX_MANIFEST_BYTES + 1), "at most"),
}


@pytest.mark.parametrize("case", BYTES)
def test_a_manifest_is_refused_that_is(case: str) -> None:
    content, message = BYTES[case]
    with pytest.raises(BundleError, match=r"manifest.json") as caught:
        decode_manifest(content)
    assert message in caught.value.problem


def test_what_a_newer_format_adds_is_not_called_a_mistake(bundle: Path) -> None:
    document = json.loads((bundle / "manifest.json").read_bytes())
    facts(document).update(format=7, something_new=1)
    with pytest.raises(BundleError, match="format version 7") as caught:
        decode_manifest(json.dumps(document).encode())
    assert caught.value.remedy == "update edgepack"


def test_equal_manifests_give_equal_bytes_whatever_the_order_of_their_options(
    bundle: Path,
) -> None:
    document = json.loads((bundle / "manifest.json").read_bytes())
    shuffled = json.loads(json.dumps(document, sort_keys=True, indent=3))
    shuffled["components"]["model"]["variants"] = document["components"]["model"]["variants"]
    again = decode_manifest(json.dumps(shuffled).encode())
    assert encode_manifest(again) == (bundle / "manifest.json").read_bytes()


def test_a_variants_model_file_is_the_one_that_it_names(bundle: Path) -> None:
    document = json.loads((bundle / "manifest.json").read_bytes())
    cpu(document)["executor_info"]["ort"]["model_file"] = "weights.bin"
    manifest = decode_manifest(json.dumps(document).encode())
    files = {variant.name: variant.model_file for variant in manifest.variants}
    assert files == {"cpu": "weights.bin", "qnn-htp": "model.onnx"}
    assert decode_manifest(encode_manifest(manifest)) == manifest
