"""A model, loaded on an execution provider and ready to run (`opening`)."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.agent.runtime import providers
from edgepack.agent.runtime.placement import LeftNode, read_left_nodes, read_placement
from edgepack.agent.runtime.runtime_words import first_line, remedy_of
from edgepack.bundle.manifest import Placement
from edgepack.errors import DeviceError

Tensor = npt.NDArray[np.generic]
"""A numpy array that goes into a model or comes out of it; its dtype and shape are the model's."""

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
}

_NOTHING: Mapping[str, Tensor] = {}
_MISFITS = (AttributeError, LookupError, TypeError)
"""What reading feeds raises that are no arrays by name."""


class SessionTensor(msgspec.Struct, frozen=True, kw_only=True):
    """Input or output of an opened model.

    Attributes:
        name: Its name.
        dtype: numpy's name of its element type, e.g. "float32".
        shape: A size, or the name of a free dimension ("" without a name), per axis.

    Example:
        ```python
        import numpy as np

        from edgepack.agent import SessionTensor, open_model

        def zeros(tensor: SessionTensor) -> np.ndarray:
            sizes = [size if isinstance(size, int) else 1 for size in tensor.shape]
            return np.zeros(sizes, tensor.dtype)

        with open_model("defects") as model:
            model.run({tensor.name: zeros(tensor) for tensor in model.inputs})
        ```
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Session:
    """A model, loaded on its provider and ready to run; safe to use from several threads.

    Attributes:
        provider: The provider that runs the model.
        inputs, outputs: Its tensors, in the model's order.
        placement: How many nodes the provider took.
        left_nodes: Nodes that the provider left.
    """

    def __init__(self, inference_session: Any, provider: str, runtime: ModuleType) -> None:
        self._session = inference_session
        self._errors = providers.runtime_errors(runtime)
        self._misfits: tuple[type[Exception], ...] = (*self._errors, *_MISFITS)
        self.provider = provider
        self.inputs = _tensors(inference_session.get_inputs())
        self.outputs = _tensors(inference_session.get_outputs())
        self._dtypes = [(one.name, _numpy_dtype(one.dtype)) for one in self.inputs]
        self._output_names = [one.name for one in self.outputs]
        # The C session: its Python wrapper takes a third of the time of a small model.
        self._call: Any = getattr(getattr(inference_session, "_sess", None), "run", None)
        self.placement: Placement = read_placement(inference_session, provider)
        self.left_nodes: tuple[LeftNode, ...] = read_left_nodes(inference_session, provider)

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run an inference.

        Args:
            feeds: A tensor for every input, of its dtype and shape.

        Returns:
            A tensor for every output, by name.

        Raises:
            ValueError: The feeds do not fit the inputs, or the session is closed.
            DeviceError: The provider failed.
        """
        failure: Exception | None = None
        try:
            for name, dtype in self._dtypes:
                if feeds[name].dtype is not dtype:
                    break
            else:
                if len(feeds) == len(self._dtypes):
                    outputs = self._call(self._output_names, feeds, None)
                    return dict(zip(self._output_names, outputs))  # noqa: B905 - as many
        except self._misfits as error:
            failure = error
        return self._run_checked(feeds, failure)

    def _run_checked(
        self,
        feeds: Mapping[str, Tensor],
        failure: Exception | None = None,
        more: Mapping[str, Tensor] = _NOTHING,
    ) -> dict[str, Tensor]:
        """Run an inference with all checks and the public interface of ONNX Runtime.

        Args:
            feeds: See `run`.
            failure: Failure of the same inference without the checks.
            more: Tensors for inputs with a default.
        """
        session = self._session
        if session is None:
            raise ValueError("the session is closed")
        check_feeds(self.inputs, feeds)
        try:
            if isinstance(failure, self._errors):
                raise failure
            found = session.run(self._output_names, {**feeds, **more})
        except self._errors as error:
            check_shared_sizes(self.inputs, feeds)
            raise self._failed(error) from error
        return dict(zip(self._output_names, found, strict=True))

    def bind(
        self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> Callable[[], None]:
        """Return an inference that reads and writes arrays of the caller.

        Args:
            inputs: An array for every input, checked by `check_feeds` and contiguous.
            outputs: An array for every output, of the dtype and shape that these inputs give.

        Returns:
            The inference. It raises as `run` does. The arrays must live as long.

        Raises:
            DeviceError: An array cannot be bound.
        """
        binding, run = self.open_binding()
        try:
            for arrays, bind in ((inputs, binding.bind_input), (outputs, binding.bind_output)):
                for name, array in arrays.items():
                    bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        except self._errors as error:
            raise self._failed(error) from error
        return run

    def open_binding(self) -> tuple[Any, Callable[[], None]]:
        """Return ONNX Runtime's binding of arrays, and an inference with the bound arrays.

        Returns:
            The binding (`bind_input`, `bind_output`), and the inference. It raises as `run` does.
            The bound arrays must live as long.
        """
        session = self._session
        if session is None:
            raise ValueError("the session is closed")
        binding = session.io_binding()
        inner, options = getattr(binding, "_iobinding", None), None
        call = getattr(getattr(session, "_sess", None), "run_with_iobinding", None)
        if inner is None or call is None:
            inner, call = binding, session.run_with_iobinding

        def run() -> None:
            try:
                call(inner, options)
            except self._errors as error:
                raise self._failed(error) from error

        return binding, run

    def _failed(self, error: Exception) -> DeviceError:
        return DeviceError(
            f"{self.provider} failed to run the model: {first_line(error)}",
            remedy=remedy_of(str(error)),
        )

    def run_timed(self, feeds: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        """Run an inference; see `run`.

        Returns:
            The outputs, and the duration, milliseconds.
        """
        started = time.perf_counter()
        outputs = self.run(feeds)
        return outputs, (time.perf_counter() - started) * 1000

    def close(self) -> None:
        """Free the session once its running inferences are done."""
        self._session = self._call = None


def _numpy_dtype(name: str) -> np.dtype[Any] | None:
    """Return numpy's own object of a dtype; None for what is not numeric, such as strings."""
    return np.dtype(name) if name in _DTYPES.values() else None


def check_feeds(inputs: tuple[SessionTensor, ...], feeds: Mapping[str, Tensor]) -> None:
    """Check feeds before ONNX Runtime does, since its messages do not name all errors.

    Raises:
        ValueError: A name, dtype or shape does not fit.
    """
    names = [tensor.name for tensor in inputs]
    if set(feeds) != set(names):
        raise ValueError(
            f"the model's inputs are {', '.join(names)}; given: "
            f"{', '.join(map(str, feeds)) or 'none'}"
        )
    for tensor in inputs:
        value = feeds[tensor.name]
        if not isinstance(value, np.ndarray):
            raise ValueError(  # noqa: TRY004 - one kind of error for what does not fit
                f"input '{tensor.name}' is a {type(value).__name__}, not a numpy array"
            )
        if value.dtype != tensor.dtype:  # not `.name`, which numpy makes anew each time
            raise ValueError(
                f"input '{tensor.name}' has dtype {value.dtype}, expected {tensor.dtype}"
            )
        fits = len(value.shape) == len(tensor.shape) and all(
            isinstance(want, str) or want == have
            for want, have in zip(tensor.shape, value.shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"input '{tensor.name}' has shape {list(value.shape)}, "
                f"expected [{', '.join(str(size) or '?' for size in tensor.shape)}]"
            )


def check_shared_sizes(inputs: tuple[SessionTensor, ...], feeds: Mapping[str, Tensor]) -> None:
    """Check dimensions of one name in several inputs; only a failure of a model needs the check.

    Args:
        inputs: Inputs of the model.
        feeds: Tensors that `check_feeds` accepts.

    Raises:
        ValueError: A dimension has several sizes.
    """
    found: dict[str, tuple[str, int]] = {}
    for tensor in inputs:
        for name, size in zip(tensor.shape, feeds[tensor.name].shape, strict=True):
            if isinstance(name, str) and name:
                first, expected = found.setdefault(name, (tensor.name, size))
                if size != expected:
                    raise ValueError(
                        f"dimension '{name}' is {expected} in input '{first}' and {size} in input "
                        f"'{tensor.name}'"
                    )


def check_tokens(counts: Mapping[str, int], feeds: Mapping[str, Tensor]) -> None:
    """Check the tokens of inputs; only a failure of a model needs the check.

    Args:
        counts: By input the number of tokens. -1 is the last one, as for ONNX's Gather.
        feeds: Tensors by input.

    Raises:
        ValueError: A token is not one of the model's.
    """
    for name, count in counts.items():
        values = np.asarray(feeds[name]) if name in feeds else np.zeros(0)
        for value in (values.min(), values.max()) if values.size else ():
            if not -count <= value < count:
                raise ValueError(
                    f"input '{name}' has the value {value}, and the model has the tokens 0 to "
                    f"{count - 1}"
                )


def name_single(names: Sequence[str], array: object) -> dict[str, Tensor]:
    """Return the feeds of a model with a single input, for which a caller gave the array alone.

    Args:
        names: Inputs of the model.
        array: What was given in place of feeds.

    Raises:
        ValueError: It is no array, or the model has several inputs.
    """
    if not isinstance(array, np.ndarray) or len(names) != 1:
        raise ValueError(
            f"the model's inputs are {', '.join(names)}: give a dict with a numpy array for each, "
            f"not a {type(array).__name__}"
        )
    return {names[0]: array}


def _tensors(arguments: list[Any]) -> tuple[SessionTensor, ...]:
    return tuple(
        SessionTensor(
            name=argument.name,
            dtype=_DTYPES.get(argument.type, argument.type),
            shape=tuple(
                size if isinstance(size, int) else str(size or "") for size in argument.shape
            ),
        )
        for argument in arguments
    )
