"""Plain files that hold samples: which forms there are, and how each is read.

- A folder of `.npz` files: a sample each, an array per input.
- A folder of `.npy` files: a sample each, for models with a single input.
- A `.npz` or `.npy` file: a stack, every array with a leading sample axis N.
- ONNX test data: `test_data_set_0/input_0.pb` …, in the order of the model's inputs.
- A folder of images, with the input declared in `edgepack.toml`.

Reader of single files of arrays, with errors for unreadable files.
"""

import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError

from edgepack.bundle.golden_pictures import SUFFIXES
from edgepack.errors import BuildError, PictureError
from edgepack.packager.config.inputs import ImageInput, WantedInputs, picture_input
from edgepack.packager.samples.checks import Fitted, fit_sample
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import some_of, toml_key
from edgepack.pictures.prepare import prepare_picture
from edgepack.tasks.arrays import Tensor
from edgepack.tasks.inputs import PictureInput

FORMS = (
    "a folder of .npz or .npy files, one .npz with a leading sample axis, ONNX test data "
    "(test_data_set_0/input_0.pb), or a folder of images with the input declared in edgepack.toml"
)


class FileSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of files, in the model's form.

    Attributes:
        count: How many.
        fit: Reads sample `i`; a `BuildError` states a mismatch with the model.
        label: File (and place inside) of sample `i`, for messages.
        notes: Notes on the samples for a person, a sentence each.
        pictures: Pictures of sample `i`; None for arrays.
    """

    count: int
    fit: Callable[[int], Fitted]
    label: Callable[[int], str]
    notes: tuple[str, ...]
    pictures: Callable[[int], tuple[Path, ...]] | None


class RawSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples in the files' form, not yet compared with the model.

    Attributes:
        count: How many.
        read: Arrays of sample `i` by input name.
        label: File (and place inside) of sample `i`, for messages.
        notes: Notes on the samples for a person, a sentence each.
        pictures: Pictures of sample `i`; None for arrays.
    """

    count: int
    read: Callable[[int], dict[str, Tensor]]
    label: Callable[[int], str]
    notes: tuple[str, ...] = ()
    pictures: Callable[[int], tuple[Path, ...]] | None = None


def open_files(path: Path, wanted: WantedInputs) -> FileSamples:
    """Detect the form of the files at `path`.

    Args:
        path: A file or a folder.
        wanted: Inputs of each sample.

    Returns:
        The samples, in a stable order: by name, numbers by value.

    Raises:
        BuildError: There is nothing, a mixture, or no form that is known.
    """
    raw = _open(path, wanted)

    def fit(index: int) -> Fitted:
        return fit_sample(raw.read(index), wanted, raw.label(index))

    return FileSamples(
        count=raw.count, fit=fit, label=raw.label, notes=raw.notes, pictures=raw.pictures
    )


def _open(path: Path, wanted: WantedInputs) -> RawSamples:
    inputs = wanted.specs
    if not path.exists():
        raise BuildError(
            f"there are no samples at {path}",
            remedy="check the path (--calibration, or [calibration] of edgepack.toml); "
            f"give {FORMS}",
        )
    if not path.is_dir():
        return _stack(path, inputs)
    visible = (file for file in path.iterdir() if not file.name.startswith("."))
    files = sorted(visible, key=_natural)
    sets = [file for file in files if file.is_dir() and file.name.startswith("test_data_set_")]
    if sets:
        return _test_data(sets, wanted)
    if any(re.fullmatch(r"input_\d+\.pb", file.name) for file in files):
        return _test_data([path], wanted)
    arrays = {
        suffix: [file for file in files if file.suffix == suffix] for suffix in (".npz", ".npy")
    }
    images = sorted(
        (file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES), key=_natural
    )
    kinds = [
        f"{len(found)} {kind}" for kind, found in (*arrays.items(), ("images", images)) if found
    ]
    if not kinds:
        raise BuildError(
            f"there are no samples in {path}"
            + (f", which holds {some_of([file.name for file in files], 3)}" if files else ""),
            remedy=_remedy(files),
        )
    if len(kinds) > 1:
        raise BuildError(
            f"{path} holds {' and '.join(kinds)}: which are the samples?",
            remedy="put those of one kind into a folder of their own",
        )
    if images:
        return _images(images, wanted)
    if arrays[".npy"]:
        name = _only_input(inputs, arrays[".npy"][0])
        return _one_a_file(arrays[".npy"], lambda file: {name: read_npy(file)})
    return _one_a_file(arrays[".npz"], read_npz)


def _one_a_file(files: list[Path], read: Callable[[Path], dict[str, Tensor]]) -> RawSamples:
    return RawSamples(
        count=len(files),
        read=lambda index: read(files[index]),
        label=lambda index: str(files[index]),
    )


def _remedy(files: Sequence[Path]) -> str:
    """Return a remedy: tables of numbers become samples with a line of NumPy."""
    tables = sorted({file.suffix for file in files} & {".csv", ".txt", ".tsv"})
    if not tables:
        return f"give {FORMS}"
    sign = "'\\t'" if tables[0] == ".tsv" else "','"
    return (
        f"np.save('samples.npy', np.loadtxt('table{tables[0]}', delimiter={sign}, "
        "dtype=np.float32)) makes a stack of a table with one sample a line; or give " + FORMS
    )


def _stack(path: Path, inputs: tuple[TensorSpec, ...]) -> RawSamples:
    refusal = partial(BuildError, found_in=str(path))
    if path.suffix == ".npy":
        arrays = {_only_input(inputs, path): read_npy(path)}
    elif path.suffix == ".npz":
        arrays = read_npz(path)
    else:
        raise BuildError(f"{path} is not a form of samples", remedy=_remedy([path]))
    if not arrays:
        raise refusal("the file holds no arrays")
    single = [name for name, array in arrays.items() if not array.ndim]
    if single:
        raise refusal(
            f"a stack has a leading sample axis, and {', '.join(single)} has no axis at all",
            remedy="np.stack the samples of each input, or give a folder with one file a sample",
        )
    counts = {name: array.shape[0] for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise refusal(
            "the arrays of a stack must have the same number of samples on their first axis: "
            + ", ".join(f"{name} has {count}" for name, count in counts.items()),
            remedy="one .npz stacks all samples; for one sample a file, give the folder",
        )
    count = next(iter(counts.values()))
    if count == 0:
        raise refusal("the file holds no samples: its first axis is 0")
    return RawSamples(
        count=count,
        read=lambda index: {name: array[index] for name, array in arrays.items()},
        label=lambda index: f"{path}, sample {index}",
    )


def _test_data(sets: list[Path], wanted: WantedInputs) -> RawSamples:
    names = [spec.name for spec in wanted.specs]
    names_in_file = list(names)
    for entry in wanted.fixed:  # by position, so that each finds its place
        names_in_file.insert(entry.position, entry.name)

    def read(index: int) -> dict[str, Tensor]:
        files = sorted(sets[index].glob("input_*.pb"), key=_natural)
        if len(files) not in (len(names), len(names_in_file)):
            raise BuildError(
                f"the test data set has {len(files)} inputs, the model takes {len(names)}",
                found_in=str(sets[index]),
                remedy="one input_0.pb, input_1.pb … for each of " + ", ".join(names),
            )
        tensors = [read_tensor(file) for file in files]
        expected = names if len(files) == len(names) else names_in_file
        by_name = {tensor.name for tensor, _ in tensors} == set(expected)
        return {
            tensor.name if by_name else name: values
            for (tensor, values), name in zip(tensors, expected, strict=True)
        }

    return RawSamples(count=len(sets), read=read, label=lambda index: str(sets[index]))


def _images(files: list[Path], wanted: WantedInputs) -> RawSamples:
    inputs = wanted.specs
    name = _only_input(inputs, files[0].parent)
    declaration = wanted.declarations.get(name)
    if not isinstance(declaration, ImageInput):
        raise BuildError(
            f"the preprocessing of image input {name!r} is not declared: without it a guess "
            f"would decide what the model sees{f'; {wanted.unprepared}' * bool(wanted.unprepared)}",
            found_in=str(files[0].parent),
            remedy="edgepack init MODEL, without --calibration, writes an edgepack.toml; complete "
            f'its [inputs.{toml_key(name)}] with kind = "image"',
        )
    batch = inputs[0].shape[0]
    at_once = batch if isinstance(batch, int) else 1
    count, left = divmod(len(files), at_once)
    if not count:
        raise BuildError(
            f"the model takes {at_once} images at once, and there are {len(files)}",
            found_in=str(files[0].parent),
            remedy=f"give {at_once} images or more, or export the model with an open batch axis",
        )
    described = picture_input(declaration, inputs[0])
    notes = []
    if at_once > 1:
        notes.append(f"The model takes {at_once} images at once: so many in a row are one sample.")
    if left:
        used = f"{len(files) - left} of {len(files)} images"
        notes.append(f"{used} are used: the rest fills no whole sample.")

    def pictures(index: int) -> tuple[Path, ...]:
        return tuple(files[index * at_once : (index + 1) * at_once])

    return RawSamples(
        count=count,
        read=lambda index: {name: _read_pictures(pictures(index), described)},
        label=lambda index: str(files[index * at_once]),
        notes=tuple(notes),
        pictures=pictures,
    )


def _read_pictures(paths: Sequence[Path], described: PictureInput) -> Tensor:
    """Return pictures in the form of the model's input, as a device prepares them.

    Raises:
        BuildError: Pillow is not installed, or a file is not a picture of 8 bits.
    """
    try:
        return np.concatenate([prepare_picture(path, described).tensor for path in paths])
    except PictureError as error:
        raise BuildError(error.problem, found_in=error.found_in, remedy=error.remedy) from error


def _only_input(inputs: tuple[TensorSpec, ...], path: Path) -> str:
    if len(inputs) == 1:
        return inputs[0].name
    names = ", ".join(spec.name for spec in inputs)
    raise BuildError(
        f"these files hold one array each, the model takes {len(inputs)} inputs: {names}",
        found_in=str(path),
        remedy="save .npz files with one array an input: "
        f"np.savez(path, {', '.join(f'{spec.name}=…' for spec in inputs)})",
    )


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Sort `input_2` before `input_10`, in any locale."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"([0-9]+)", path.as_posix())
    ]


def read_npz(path: Path) -> dict[str, Tensor]:
    """Return the arrays of a .npz, by name.

    Raises:
        BuildError: The file has another format, is damaged, or holds Python objects.
    """
    refuse_special(path)
    try:
        with path.open("rb") as file:  # np.load leaves a file that it cannot read open
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise BuildError(f"{path.name} is a .npy array, not a .npz", found_in=str(path))
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, error) from error


def read_npy(path: Path) -> Tensor:
    """Return the array of a .npy, read from the file on access.

    Raises:
        BuildError: The file has another format, is damaged, or holds Python objects.
    """
    refuse_special(path)
    try:
        array = np.load(path, allow_pickle=False, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(array, np.ndarray):
        raise BuildError(f"{path.name} is a .npz archive, not a .npy", found_in=str(path))
    return array


def read_tensor(path: Path) -> tuple[onnx.TensorProto, Tensor]:
    """Return a tensor of ONNX test data, and its values.

    Raises:
        BuildError: The file has another format, is damaged, or its values lie elsewhere.
    """
    refuse_special(path)
    try:
        tensor = onnx.TensorProto()
        tensor.ParseFromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise _unreadable(path, error) from error
    if tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise BuildError("the file holds no tensor", found_in=str(path), remedy="export it again")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise BuildError(
            f"the values of {path.name} lie in another file",
            found_in=str(path),
            remedy="save the tensor with its values inside",
        )
    try:
        return tensor, onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable(path, error) from error


def refuse_special(path: Path) -> None:
    """Reject a path other than a regular file: a reader of a pipe may wait for ever.

    Raises:
        BuildError: The path is a pipe, a folder or a device.
    """
    if path.exists() and not path.is_file():
        raise BuildError(
            f"{path.name} is not a file", found_in=str(path), remedy="remove it from the samples"
        )


def _unreadable(path: Path, error: Exception) -> BuildError:
    refusal = partial(BuildError, found_in=str(path))
    if "allow_pickle" in str(error) and not _begins_as_array(path):
        return refusal(
            f"{path.name} is not a NumPy file",
            remedy="save arrays: np.savez(path, name=array.astype('float32'))",
        )
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return refusal(
            f"{path.name} holds Python objects, not numbers",
            remedy="save plain arrays: np.savez(path, name=array.astype('float32'))",
        )
    if "mmap" in str(error) or "truncat" in str(error) or isinstance(error, EOFError):
        return refusal(f"{path.name} is truncated", remedy="write or copy it again")
    return refusal(f"{path.name} cannot be read: {error}", remedy="write or copy it again")


def _begins_as_array(path: Path) -> bool:
    """Return True for a .npy, a .npz or a pickle; NumPy takes any other file for a pickle too."""
    with path.open("rb") as file:
        return file.read(6).startswith((b"\x93NUMPY", b"PK", b"\x80"))
