"""External data: the files beside a model that hold its weights."""

from collections.abc import Mapping
from pathlib import Path

import onnx

from edgepack.errors import BuildError
from edgepack.packager.graph import stored_tensors


def external_files(path: Path, model: onnx.ModelProto) -> tuple[Path, ...]:
    """Finds a model's external data files and checks them before anything is read from them.

    Args:
        path: The model's file.
        model: The model, as it was parsed.

    Returns:
        The files, sorted by their location as the model writes it.

    Raises:
        BuildError: A file is outside the model's folder, missing or too short, or a tensor cannot
            have as many bytes as it says.
    """
    root = path.parent.resolve()
    files: dict[str, Path] = {}
    for name, tensor in stored_tensors.named_tensors(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        file = (root / location).resolve()
        where = f"{path}, tensor {name!r}"
        if (root / location).is_symlink() and not file.is_relative_to(root):
            raise BuildError(
                f"external data file {location!r} is a link to {file}, outside the model's folder",
                found_in=where,
                remedy="copy the model's folder with what its links lead to (cp -rL; the cache of "
                "Hugging Face holds links)",
            )
        if not location or Path(location).is_absolute() or not file.is_relative_to(root):
            raise BuildError(
                f"the model points outside its folder for external data: {location!r}",
                found_in=where,
                remedy="save it again with onnx.save_model(…, save_as_external_data=True)",
            )
        if not file.is_file():
            raise BuildError(
                f"external data file {location!r} is missing: it holds the values of "
                f"tensor {name!r}",
                found_in=where,
                remedy=f"put {location} beside {path.name} (it belongs to the same export)",
            )
        end = _external_end(where, tensor, entries)
        if end > file.stat().st_size:
            raise BuildError(
                f"external data file {location!r} is truncated: tensor {name!r} ends at byte "
                f"{end:,}, the file has {file.stat().st_size:,}",
                found_in=where,
                remedy="copy the file again",
            )
        files[location] = file
    return tuple(files[location] for location in sorted(files))


def _external_end(where: str, tensor: onnx.TensorProto, entries: Mapping[str, str]) -> int:
    """The byte at which a tensor's external data end, at least."""
    try:
        offset, length = (int(entries.get(key) or 0) for key in ("offset", "length"))
    except ValueError as error:
        raise BuildError(
            f"the offset or length of external data is no number: {error}",
            found_in=where,
            remedy="export the model again",
        ) from error
    if offset < 0 or length < 0:
        raise BuildError(
            f"the offset ({offset}) or length ({length}) of external data is negative",
            found_in=where,
            remedy="export the model again",
        )
    needed = stored_tensors.shaped_bytes(tensor)
    if length and needed is not None and length != needed:
        raise BuildError(
            f"external data of {length:,} bytes cannot be a tensor of shape "
            f"{list(tensor.dims)}, which has {needed:,}",
            found_in=where,
            remedy="export the model again",
        )
    return offset + (length or needed or 0)
