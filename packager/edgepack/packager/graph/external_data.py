"""External data: the files next to a model that hold its weights."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import onnx

from edgepack.errors import BuildError
from edgepack.packager.graph import stored_tensors


def external_files(path: Path, model: onnx.ModelProto) -> tuple[Path, ...]:
    """Find a model's external data files and check the files before any read.

    Args:
        path: The model's file.
        model: The parsed model.

    Returns:
        The files, sorted by their location in the model.

    Raises:
        BuildError: A file is outside the model's folder, missing or too short, or a tensor cannot
            have its stated number of bytes.
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
        refusal = partial(BuildError, found_in=where)
        if (root / location).is_symlink() and not file.is_relative_to(root):
            raise refusal(
                f"external data file {location!r} is a link to {file}, outside the model's folder",
                remedy="copy the model's folder with what its links lead to (cp -rL; the cache of "
                "Hugging Face holds links)",
            )
        if not location or Path(location).is_absolute() or not file.is_relative_to(root):
            raise refusal(
                f"the model points outside its folder for external data: {location!r}",
                remedy="save it again with onnx.save_model(…, save_as_external_data=True)",
            )
        if not file.is_file():
            raise refusal(
                f"external data file {location!r} is missing: it holds the values of "
                f"tensor {name!r}",
                remedy=f"put {location} beside {path.name} (it belongs to the same export)",
            )
        end = _external_end(where, tensor, entries)
        if end > file.stat().st_size:
            raise refusal(
                f"external data file {location!r} is truncated: tensor {name!r} ends at byte "
                f"{end:,}, the file has {file.stat().st_size:,}",
                remedy="copy the file again",
            )
        files[location] = file
    return tuple(files[location] for location in sorted(files))


def _external_end(where: str, tensor: onnx.TensorProto, entries: Mapping[str, str]) -> int:
    """Return the byte at which a tensor's external data end, at least."""
    refusal = partial(BuildError, found_in=where)
    try:
        offset, length = (int(entries.get(key) or 0) for key in ("offset", "length"))
    except ValueError as error:
        raise refusal(
            f"the offset or length of external data is not a number: {error}",
            remedy="export the model again",
        ) from error
    if offset < 0 or length < 0:
        raise refusal(
            f"the offset ({offset}) or length ({length}) of external data is negative",
            remedy="export the model again",
        )
    needed = stored_tensors.shaped_bytes(tensor)
    if length and needed is not None and length != needed:
        raise refusal(
            f"external data of {length:,} bytes cannot be a tensor of shape "
            f"{list(tensor.dims)}, which has {needed:,}",
            remedy="export the model again",
        )
    return offset + (length or needed or 0)
