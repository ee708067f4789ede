"""Inferences with fixed arrays: nothing is allocated and copied between them."""

from collections.abc import Callable, Mapping

import numpy as np

from edgepack.agent.runtime.sessions import SessionTensor, Tensor, name_single
from edgepack.agent.serving.opened import Call, OpenedModel


class BoundCall:
    """Inferences of a model with fixed arrays; for a single thread.

    Made by `Model.bind`. After an update the same arrays serve the new release.

    Attributes:
        inputs: The arrays that are read, by input. Write to them in place.
        outputs: The arrays that every run overwrites, by output. Copy what must be kept.

    Example:
        ```python
        import numpy as np

        from edgepack.agent import BoundCall, open_model

        def score(bound: BoundCall, image: np.ndarray) -> float:
            bound.inputs["x"][...] = image
            return float(bound.run()["y"].max())

        with open_model("defects") as model:
            print(score(model.bind(), np.zeros((1, 3, 8, 8), np.float32)))
        ```
    """

    def __init__(
        self, serving: Callable[[], OpenedModel], feeds: Mapping[str, Tensor] | Tensor | None
    ) -> None:
        self._serving = serving
        opened = serving()
        tensors = opened.session.inputs
        self.inputs = make_inputs(tensors) if feeds is None else check_arrays(tensors, feeds)
        self.outputs: dict[str, Tensor] = {}
        self._bound: tuple[OpenedModel, Call] | None = self._bind(opened)

    def run(self) -> dict[str, Tensor]:
        """Run an inference on the active model; see `Model.run`.

        Returns:
            `outputs`: the same arrays at each call.

        Raises:
            ValueError: The release that serves now has other inputs or outputs, or the model is
                closed.
            DeviceError: The provider failed.

        Example:
            ```python
            from edgepack.agent import open_model

            with open_model("defects") as model:
                bound = model.bind()
                for _ in range(3):
                    print(bound.run()["y"])
            ```
        """
        opened, bound = self._serving(), self._bound
        if bound is None or bound[0] is not opened:
            bound = self._bound = self._bind(opened)
        return opened.run(self.inputs, bound[1])

    def leave(self, serving: OpenedModel) -> None:
        """Free a release that was replaced; the next run binds the release that serves."""
        bound = self._bound
        if bound is not None and bound[0] is not serving:
            self._bound = None

    def _bind(self, opened: OpenedModel) -> tuple[OpenedModel, Call]:
        """Bind the arrays to a release; an inference tells the shapes of its outputs."""
        version = opened.pointer.bundle.version
        try:
            with opened.marks.running():
                found = opened.session.run(self.inputs)
        except ValueError as error:
            raise ValueError(
                f"version {version} does not take the bound arrays: {error}"
            ) from error
        if not self.outputs:
            self.outputs = {name: _own(name, value) for name, value in found.items()}
        is_other = self.outputs.keys() != found.keys() or any(
            (value.dtype, value.shape) != (self.outputs[name].dtype, self.outputs[name].shape)
            for name, value in found.items()
        )
        if is_other:
            raise ValueError(
                f"version {version} gives other outputs than the bound ones: call model.bind again"
            )
        inference, outputs = opened.session.bind(self.inputs, self.outputs), self.outputs

        def call(_: Mapping[str, Tensor]) -> dict[str, Tensor]:
            inference()
            return outputs

        return opened, call


def make_inputs(tensors: tuple[SessionTensor, ...]) -> dict[str, Tensor]:
    """Return an array of zeros for every input.

    Raises:
        ValueError: An input has a free dimension.
    """
    arrays: dict[str, Tensor] = {}
    for one in tensors:
        sizes = [size for size in one.shape if isinstance(size, int)]
        if len(sizes) < len(one.shape):
            shape = ", ".join(str(size) or "?" for size in one.shape)
            raise ValueError(
                f"input '{one.name}' has the shape [{shape}]: give bind an array for each input"
            )
        arrays[one.name] = np.zeros(sizes, one.dtype)
    return arrays


def check_arrays(
    tensors: tuple[SessionTensor, ...], feeds: Mapping[str, Tensor] | Tensor
) -> dict[str, Tensor]:
    """Return arrays that can be bound, by input.

    Args:
        tensors: Inputs of the model.
        feeds: The arrays; the array itself for a single input.

    Raises:
        ValueError: An array cannot be bound.
    """
    if not isinstance(feeds, Mapping):
        feeds = name_single([one.name for one in tensors], feeds)
    for name, value in feeds.items():
        _check(name, value)
    return dict(feeds)


def _own(name: str, value: Tensor) -> Tensor:
    """Return an array that an inference may overwrite."""
    _check(name, value)
    return np.empty_like(value, order="C")


def _check(name: str, value: Tensor) -> None:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise ValueError(f"'{name}' is no array of numbers: such a tensor cannot be bound")
    if not value.flags.c_contiguous:
        raise ValueError(f"'{name}' is not contiguous: bind numpy.ascontiguousarray of it")
