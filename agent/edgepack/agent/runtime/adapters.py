"""Sessions of a base with the tensors of an adapter."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.agent.runtime import providers
from edgepack.agent.runtime.bases import BaseRelease
from edgepack.agent.runtime.opening import open_session
from edgepack.agent.runtime.plain_files import plain_files
from edgepack.agent.runtime.runtime_words import first_line
from edgepack.agent.runtime.sessions import Session, Tensor
from edgepack.bundle.adapters import MAX_ADAPTER_BYTES, MAX_RANK, AdapterPlaces
from edgepack.bundle.chunks import open_regular
from edgepack.bundle.generation import Generation
from edgepack.bundle.manifest import MANIFEST_FILE, Variant, decode_manifest
from edgepack.errors import BundleError

Tensors = Mapping[str, Tensor]


class AdaptedSession(Session):
    """Session of a base that runs with an adapter; further adapters share the base's session.

    Args:
        base: The base's session.
        tensors: The adapter's tensors by name, float32.
    """

    def __init__(self, base: Session, tensors: Tensors) -> None:
        self.__dict__.update(base.__dict__)
        self._tensors = dict(tensors)

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run an inference with the adapter; see `Session.run`."""
        return self._run_checked(feeds, more=self._tensors)

    def open_binding(self) -> tuple[Any, Callable[[], None]]:
        """Return a binding that has the adapter's tensors; see `Session.open_binding`."""
        binding, run = super().open_binding()
        for name, array in self._tensors.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        tensors = self._tensors

        def run_adapted(kept: object = tensors) -> None:
            """Run; the tensors live as long as the binding."""
            run()

        return binding, run_adapted


def read_adapter(file: Path, places: AdapterPlaces | None) -> dict[str, Tensor]:
    """Return the tensors of an adapter's file, checked against the places of its base.

    Args:
        file: The verified file.
        places: Places for adapters in the base; None if it has none.

    Returns:
        float32 tensors by name; A is (inputs, rank), B is (rank, outputs).

    Raises:
        BundleError: The file is not an adapter, or a tensor does not fit.
    """
    runtime = providers.load_runtime()
    with open_regular(file) as opened:
        size_bytes = opened.seek(0, 2)
    if size_bytes > MAX_ADAPTER_BYTES:
        raise BundleError(
            f"the adapter has {size_bytes} bytes, at most {MAX_ADAPTER_BYTES} are read",
            found_in=str(file),
        )
    try:
        adapter = runtime.AdapterFormat.read_adapter(str(file))  # Owns the memory of its values.
        stored = adapter.get_parameters()
        tensors = {name: np.array(value.numpy(), order="C") for name, value in stored.items()}
    except providers.runtime_errors(runtime) as error:
        raise BundleError(
            f"the file is not an adapter of ONNX Runtime: {first_line(error)}", found_in=str(file)
        ) from error
    _check(tensors, places, str(file))
    return tensors


def _check(tensors: Tensors, places: AdapterPlaces | None, found_in: str) -> None:
    shapes = places.shapes if places is not None else {}
    ranks: dict[str, int] = {}
    for name, tensor in sorted(tensors.items()):
        wanted = shapes.get(name)
        if wanted is None:
            raise BundleError(
                f"the base has no place for {name!a:.200}, among {len(shapes)} tensors",
                found_in=found_in,
            )
        fits = tensor.ndim == 2 and all(
            size is None or size == own for size, own in zip(wanted, tensor.shape, strict=True)
        )
        if tensor.dtype != np.float32 or not fits:
            sizes = ["rank" if size is None else size for size in wanted]
            raise BundleError(
                f"{name!a:.200} is {tensor.dtype} {list(tensor.shape)}, and the base takes float32 "
                f"{sizes}",
                found_in=found_in,
            )
        product, _, part = name.rpartition(".lora_")
        rank = tensor.shape[1 if part.startswith("A") else 0]
        if not 0 < rank <= MAX_RANK or ranks.setdefault(product, rank) != rank:
            raise BundleError(
                f"{name!a:.200} has rank {rank}, and its pair {ranks.get(product, 0)}: ranks are 1 "
                f"to {MAX_RANK}, and equal",
                found_in=found_in,
            )
    pairs = {name.rpartition(".lora_")[0] for name in tensors}
    if len(tensors) != 2 * len(pairs) or not tensors:
        raise BundleError(
            f"the adapter has {len(tensors)} tensors for {len(pairs)} products: each has two",
            found_in=found_in,
        )


def read_generation(base: BaseRelease) -> Generation | None:
    """Return the facts of texts of an adapter's base.

    Raises:
        BundleError: The manifest of the base is damaged.
    """
    return decode_manifest((Path(base.folder) / MANIFEST_FILE).read_bytes()).facts.generation


def open_variant_session(
    folder: Path,
    variant: Variant,
    base: BaseRelease | None,
    *,
    threads: int,
    key_file: str = "",
) -> Session:
    """Open a variant, of an adapter with its base.

    Args:
        folder: Root of the bundle, with plain files.
        variant: The variant.
        base: The base of an adapter; None for a model that runs by itself.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        key_file: The device's private key, for an encrypted base; "" without a key.

    Raises:
        BundleError: The files do not fit each other.
        DeviceError: The provider is not here, or fails.
    """
    if base is None:
        return open_session(folder, variant, threads=threads)
    generation = read_generation(base)
    places = generation.adapters if generation is not None else None
    tensors = read_adapter(folder / variant.folder / variant.model_file, places)
    with ExitStack() as stack:
        plain = stack.enter_context(plain_files(Path(base.folder), base.variant, key_file))
        return AdaptedSession(open_session(plain, base.variant, threads=threads), tensors)
