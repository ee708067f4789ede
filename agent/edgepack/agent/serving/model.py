"""A model, for an application: opened by name, swapped during use as updates come.

    with open_model("line-orientation") as model:
        outputs = model.run({"x": pixels})

`following` watches which release is active. A new release takes over between two inferences: no
inference waits or fails because of the switch. A forked child follows the releases itself.
"""

import asyncio
import atexit
import os
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from edgepack.agent.generation.texts import TextRequest
from edgepack.agent.runtime.sessions import SessionTensor, Tensor
from edgepack.agent.serving.answers import Answering
from edgepack.agent.serving.batch import run_batch
from edgepack.agent.serving.bound import BoundCall
from edgepack.agent.serving.closing import Closing
from edgepack.agent.serving.following import Follower
from edgepack.agent.serving.model_session import HOLD_S, ModelSession
from edgepack.agent.serving.opened import OpenedModel
from edgepack.agent.serving.text_generation import TEXT_HOLD_S, OwnGeneration
from edgepack.agent.serving.text_pieces import Generation
from edgepack.agent.serving.writing import Writing
from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice

if TYPE_CHECKING:
    from edgepack.agent.serving.served_model import ServedModel

STATE_DIR_VARIABLE = "EDGEPACK_STATE_DIR"


class Model(Answering, Writing, Closing):
    """The active model of a device; safe to use from several threads.

    Made by `open_model`. Use the model as a context manager, or `close` it. An update swaps the
    model between two inferences: `bundle` and `choice` give the current release. Inferences that
    must run on the same release belong into a `session`.

    Example:
        ```python
        import numpy as np

        from edgepack.agent import Model, open_model

        def score(model: Model, image: np.ndarray) -> np.ndarray:
            return model.run({"x": image})["y"]

        with open_model("defects") as model:
            print(score(model, np.zeros((1, 3, 8, 8), np.float32)), "by", model.bundle.version)
        ```
    """

    def __init__(self, name: str, state_dir: Path, *, threads: int, poll_s: float | None) -> None:
        self._name = name
        self._state_dir = state_dir
        self._threads = threads
        self._poll_s = poll_s
        self._guard = threading.Lock()
        self._follower = self._follow()
        _models.add(self)

    def run(self, feeds: Mapping[str, Tensor] | Tensor) -> dict[str, Tensor]:
        """Run an inference on the active model.

        The duration is counted, and reported to the fleet by the agent.

        Args:
            feeds: A numpy array for every input, by its name, with the dtype and shape that
                `inputs` says, e.g. float32 (1, 3, 224, 224). `description` and `edgepack inspect`
                state the meaning of the numbers; `run_image` prepares a picture by it. A model with
                a single input takes the array itself, too.

        Returns:
            A numpy array for every output, by its name, as `outputs` says.

        Raises:
            ValueError: The feeds do not fit the inputs, or the model is closed.
            DeviceError: The provider failed; the model stays open.

        Example:
            ```python
            import numpy as np

            from edgepack.agent import open_model

            with open_model("defects") as model:
                outputs = model.run({"x": np.zeros((1, 3, 8, 8), np.float32)})
                print({name: array.shape for name, array in outputs.items()})
            ```
        """
        return self._opened().run(feeds)

    def bind(self, feeds: Mapping[str, Tensor] | Tensor | None = None) -> BoundCall:
        """Fix the arrays of inferences: such a call takes less time than `run`.

        Args:
            feeds: A contiguous array for every input, read at each call; the array itself for a
                single input. None makes arrays of zeros, for a model without free dimensions.

        Returns:
            The call, with its arrays. Each thread binds its own.

        Raises:
            ValueError: The arrays do not fit the inputs or cannot be bound, or the model is closed.
            DeviceError: The provider failed.

        Example:
            ```python
            import numpy as np

            from edgepack.agent import open_model

            with open_model("defects") as model:
                image = np.zeros((1, 3, 8, 8), np.float32)
                bound = model.bind({"x": image})
                image[...] = 0.5
                print(bound.run()["y"])
            ```
        """
        bound = BoundCall(self._opened, feeds)
        self._usable().bound.add(bound)
        return bound

    def run_batch(
        self, samples: Sequence[Mapping[str, Tensor] | Tensor]
    ) -> list[dict[str, Tensor]]:
        """Run several inferences as one, where the model takes a batch of any size.

        Args:
            samples: The feeds of each inference, see `run`; the first axis of each array is the
                batch.

        Returns:
            The outputs of each inference, in order. A model whose batch is fixed, or whose outputs
            cannot be divided, runs them one after the other.

        Raises:
            ValueError: The feeds do not fit the inputs, or the model is closed.
            DeviceError: The provider failed.

        Example:
            ```python
            import numpy as np

            from edgepack.agent import open_model

            with open_model("defects") as model:
                images = [np.full((1, 3, 8, 8), value, np.float32) for value in (0.1, 0.9)]
                for outputs in model.run_batch([{"x": image} for image in images]):
                    print(outputs["y"])
            ```
        """
        return run_batch(self._opened(), samples)

    async def run_async(self, feeds: Mapping[str, Tensor] | Tensor) -> dict[str, Tensor]:
        """Run an inference in a thread, so that the event loop goes on; see `run`.

        The arrays of `feeds` must not change before the inference has ended.

        Example:
            ```python
            import asyncio

            import numpy as np

            from edgepack.agent import open_model

            async def score() -> None:
                with open_model("defects") as model:
                    outputs = await model.run_async({"x": np.zeros((1, 3, 8, 8), np.float32)})
                    print(outputs["y"])

            asyncio.run(score())
            ```
        """
        return await asyncio.to_thread(self.run, feeds)

    def session(self, *, hold_s: float = HOLD_S) -> ModelSession:
        """Begin inferences that belong together: all run on the same release.

        A loop that carries a state from each inference to the next, such as a decoder, a recurrent
        net or a tracker, must not pass the state of a release to another release.

        Args:
            hold_s: Seconds that the session keeps its release after a switch to a newer release, at
                most a day. Both releases are in memory for this time.

        Returns:
            The session, to be used as a context manager, or closed. Each thread or stream begins a
            session of its own.

        Raises:
            ValueError: `hold_s` is out of range, or the model is closed.

        Example:
            ```python
            import numpy as np

            from edgepack.agent import open_model

            with open_model("defects") as model, model.session(hold_s=60.0) as session:
                for _ in range(3):
                    outputs = session.run({"x": np.zeros((1, 3, 8, 8), np.float32)})
                print(session.bundle.version, "ran all of them")
            ```
        """
        return ModelSession(self._usable(), hold_s=hold_s, owner=self)

    @property
    def bundle(self) -> BundleRef:
        """The bundle that serves now."""
        return self._serving.pointer.bundle

    @property
    def choice(self) -> Choice:
        """Choice of the serving variant, with the reason."""
        return self._serving.pointer.choice

    @property
    def inputs(self) -> tuple[SessionTensor, ...]:
        """Inputs of the model that serves now, in its own order."""
        return self._serving.session.inputs

    @property
    def outputs(self) -> tuple[SessionTensor, ...]:
        """Outputs of the model that serves now, in its own order."""
        return self._serving.session.outputs

    @property
    def troubles(self) -> tuple[str, ...]:
        """Reasons why newer models could not be opened here, the last few; empty without a
        failure.
        """
        return self._here().troubles

    def close(self) -> None:
        """Stop watching, and write the statistics; running inferences end undisturbed."""
        self._follower.close()

    def _release(self) -> OpenedModel:
        return self._opened()

    def _begin_text(self, request: TextRequest) -> Generation:
        session = ModelSession(self._usable(), hold_s=TEXT_HOLD_S, owner=self)
        return OwnGeneration(session, request, closes_session=True)

    @property
    def _serving(self) -> OpenedModel:
        return self._here().serving

    def _opened(self) -> OpenedModel:
        """Return the release that serves in this process."""
        follower = self._follower
        if not follower.is_usable:
            follower = self._usable()
        return follower.serving

    def _usable(self) -> Follower:
        follower = self._here()
        if follower.is_closed:
            raise ValueError("the model is closed")
        return follower

    def _here(self) -> Follower:
        """Return the follower of the releases in this process, which may be a fork."""
        if self._follower.is_foreign and not self._follower.is_closed:
            with self._guard:
                if self._follower.is_foreign:
                    self._follower = self._follow()
        return self._follower

    def _follow(self) -> Follower:
        follower = Follower(self._name, self._state_dir, threads=self._threads, poll_s=self._poll_s)
        _register_exit()
        _followers.add(follower)
        weakref.finalize(self, follower.abandon).atexit = False
        return follower

    def _note_fork(self) -> None:
        """Replace a lock that may be locked for ever. For a forked child."""
        self._guard = threading.Lock()


_models: "weakref.WeakSet[Model]" = weakref.WeakSet()

_followers: "weakref.WeakSet[Follower]" = weakref.WeakSet()
"""All followers of this process, also those of models that nobody refers to any more."""

_of_parent: list[Follower] = []
"""In a forked child: what is never freed there. A provider's destructors expect its threads."""


def _note_fork() -> None:
    """Leave the parent's resources to the parent. For a forked child.

    The parent's threads are not here, its locks may be locked for ever, and a provider's device is
    not shared. So the child opens a release again at its first use of the model.
    """
    for model in tuple(_models):
        model._note_fork()
    for follower in tuple(_followers):
        follower.leave_to_parent()
        _of_parent.append(follower)


_registered_exits: set[int] = set()
"""Processes in which multiprocessing calls `_note_exit`, by pid."""


def _register_exit() -> None:
    """Have a child of multiprocessing, which ends without `atexit`, end its registrations.

    A child forgets at its start what its parent registered.
    """
    if (forked := sys.modules.get("multiprocessing.util")) and os.getpid() not in _registered_exits:
        _registered_exits.add(os.getpid())
        forked.Finalize(None, _note_exit, exitpriority=0)


def _note_exit() -> None:
    """End the registrations of a process that exits without `close`."""
    for follower in tuple(_followers):
        follower.deregister()


atexit.register(_note_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


@overload
def open_model(
    name: str,
    state_dir: Path | str | None = None,
    *,
    threads: int = 0,
    poll_s: float | None = None,
    via: Literal["process"] = "process",
) -> Model: ...
@overload
def open_model(
    name: str, state_dir: Path | str | None = None, *, via: Literal["server"]
) -> "ServedModel": ...
def open_model(
    name: str,
    state_dir: Path | str | None = None,
    *,
    threads: int = 0,
    poll_s: float | None = None,
    via: Literal["process", "server"] = "process",
) -> "Model | ServedModel":
    """Open a model of this device and follow its releases from then on.

    A process may open several models, and several processes the same model. The name is required: a
    default for devices with a single model would fail on the day of a second model.

    The agent need not run. The first inference is as fast as all others: the model runs once on a
    golden sample before this function returns.

    Args:
        name: Name of the model, as in the bundle.
        state_dir: The agent's state folder; None uses the environment variable
            `EDGEPACK_STATE_DIR`, else `/var/lib/edgepack`.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        poll_s: Seconds between looks at which model is active; None has the kernel tell of a
            change at once, and costs an idle process next to nothing.
        via: "process" loads the model into this process. "server" uses the model server: one copy
            of the model for all processes, and a crash of a driver does not end this process.

    Returns:
        The model; close the model after use.

    Raises:
        DeviceError: No model of that name is active, or its provider fails here.
        BundleError: The files differ from the installed files.

    Example:
        ```python
        import numpy as np

        from edgepack.agent import open_model

        with open_model("defects", threads=1) as model:
            image = np.zeros((1, 3, 8, 8), np.float32)
            scores = model.run({"x": image})["y"]
        ```
    """
    folder = state_dir or os.environ.get(STATE_DIR_VARIABLE) or DEFAULT_STATE_DIR
    if not isinstance(name, str):
        raise TypeError(f"open_model takes the name of a model, not a {type(name).__name__}")
    if not isinstance(threads, int):
        raise TypeError(f"threads is a number, not a {type(threads).__name__}")
    if via not in ("process", "server"):
        raise ValueError(f"via is 'process' or 'server', not {via!r}")
    if via == "server":
        from edgepack.agent.serving.served_model import ServedModel

        return ServedModel(name, Path(folder))
    return Model(name, Path(folder), threads=threads, poll_s=poll_s)
