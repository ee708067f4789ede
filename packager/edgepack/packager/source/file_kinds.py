"""Kinds of files that were given as a model and are not ONNX."""

import re
import zipfile
from functools import partial
from importlib import resources
from pathlib import Path

import msgspec

from edgepack.decoding import decode_toml
from edgepack.errors import BuildError
from edgepack.packager.graph.tensor_offsets import BYTES, VARINT, fields

_PROTOBUF_LIMIT_BYTES = 2**31 - 1
_HEAD_BYTES = 512
_IR_VERSION, _GRAPH, _OPSETS, _LAST_MODEL_FIELD = 1, 7, 8, 25
_MODEL_FIELDS = {_IR_VERSION: VARINT, _GRAPH: BYTES, _OPSETS: BYTES}
"""Fields of ModelProto that every exporter writes; ir_version comes first."""

_TORCH_REMEDY = "torch.onnx.export(model, example_inputs, 'model.onnx', opset_version=17)"
_KERAS_REMEDY = "python -m tf2onnx.convert --keras model.h5 --output model.onnx --opset 17"


class _Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table of kinds, which defines its keys."""

    begins: str
    looks: str
    remedy: str = ""


_FILE = resources.files("edgepack.packager.source") / "file_kinds.toml"
_KINDS = decode_toml(_FILE.read_bytes(), dict[str, tuple[_Kind, ...]])["kind"]


def check(path: Path) -> None:
    """Reject a path that is not a file, is empty, too big for protobuf, or plainly of another
    format.

    Args:
        path: The file given as a model.

    Raises:
        BuildError: The file cannot be an ONNX model; the message states the probable format.
    """
    refusal = partial(BuildError, found_in=str(path))
    if path.is_dir():
        raise _folder(path)
    if not path.exists():
        raise BuildError(f"there is no file {path}", remedy=_near(path))
    if not path.is_file():
        raise BuildError(f"{path} is not a regular file")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise BuildError(
            f"{path} cannot be read: {error.strerror}", remedy="check its permissions"
        ) from error
    size = path.stat().st_size
    if size == 0:
        raise refusal(f"{path.name} is empty", remedy="export or copy the model again")
    looks, remedy = _recognise(path, head)
    if looks:
        raise refusal(
            f"{path.name} is not an ONNX model: it looks like {looks}",
            remedy=remedy or "give the .onnx file that the training framework exported",
        )
    if size > _PROTOBUF_LIMIT_BYTES:
        raise refusal(
            f"{path.name} has {size:,} bytes: a single ONNX file ends at 2 GB, bigger models keep "
            "their weights in external data",
            remedy="export again with external data (onnx.save_model(…, "
            "save_as_external_data=True))",
        )


def unreadable(path: Path) -> BuildError:
    """Return the error for a file that no format was recognised in and that does not parse as
    ONNX.
    """
    content = path.read_bytes()
    needed = _bytes_needed(content)
    if needed is not None:
        return BuildError(
            f"{path.name} is truncated: {needed}, the file ends at byte {len(content):,}",
            found_in=str(path),
            remedy="copy or download the file again, and compare its checksum",
        )
    return BuildError(
        f"{path.name} is not an ONNX model: it does not hold an ONNX protobuf "
        f"(it begins with {content[:8].hex(' ')})",
        found_in=str(path),
        remedy="give the .onnx file that the training framework exported",
    )


def _recognise(path: Path, head: bytes) -> tuple[str, str]:
    """Return the format and the remedy from the first bytes; empty for possible ONNX."""
    if head.startswith(b"PK\x03\x04"):
        return _zip(path)
    for kind in _KINDS:
        if re.match(kind.begins.encode(), head, re.DOTALL):
            return kind.looks, kind.remedy.format(
                name=path.name, torch=_TORCH_REMEDY, keras=_KERAS_REMEDY
            )
    return "", ""


def _zip(path: Path) -> tuple[str, str]:
    try:
        names = zipfile.ZipFile(path).namelist()
    except zipfile.BadZipFile:
        return "a damaged zip archive", "download the file again"
    if any(name.endswith("data.pkl") for name in names):
        return "a PyTorch checkpoint (a zip archive with data.pkl)", _TORCH_REMEDY
    if any(name.endswith("config.json") for name in names) and any(".h5" in n for n in names):
        return "a Keras model (a zip archive)", _KERAS_REMEDY
    inside = [name for name in names if name.endswith(".onnx")]
    if inside:
        return f"a zip archive that holds {', '.join(inside[:3])}", f"unzip {path.name}"
    return "a zip archive", "unzip it and give the .onnx file inside, if there is one"


def _folder(path: Path) -> BuildError:
    models = sorted(file.name for file in path.glob("*.onnx"))
    if models:
        return BuildError(
            f"{path} is a folder, not a model; it holds {', '.join(models[:5])}",
            remedy=f"give the file: {path / models[0]}",
        )
    if (path / "saved_model.pb").exists():
        return BuildError(
            f"{path} is a TensorFlow SavedModel, not an ONNX model",
            remedy=f"python -m tf2onnx.convert --saved-model {path} --output model.onnx --opset 17",
        )
    if (path / "config.json").exists():
        return BuildError(
            f"{path} has no .onnx file, and is not a Hugging Face model folder: its config.json is "
            "not JSON, or has no model_type",
            found_in=str(path / "config.json"),
            remedy="download the folder again, or give an .onnx file",
        )
    return BuildError(
        f"{path} is a folder, not a model, and holds no .onnx file", remedy="give the .onnx file"
    )


def _near(path: Path) -> str:
    folder = path.parent
    models = sorted(file.name for file in folder.glob("*.onnx")) if folder.is_dir() else []
    if models:
        return f"there are {', '.join(models[:5])} in {folder}"
    return "check the path"


def _bytes_needed(content: bytes) -> str | None:
    """Walk the top-level fields; name a field beyond the end if the fields before are ONNX's.

    Returns:
        The missing part, in words, or None if the bytes are not the beginning of an ONNX model.
    """
    seen: set[int] = set()
    for field in fields(content, 0, len(content)):
        if _MODEL_FIELDS.get(field.number, field.wire) != field.wire:
            return None
        if field.number not in range(1, _LAST_MODEL_FIELD + 1):
            return None
        seen.add(field.number)
        if _IR_VERSION not in seen:
            return None
        if field.end > len(content):
            return f"its part {field.number} ends at byte {field.end:,}"
    if not seen or {_GRAPH, _OPSETS} <= seen:
        return None
    return "it has no " + ("graph" if _GRAPH not in seen else "operator set")
