"""Inferences that belong together: all run on the same release during updates."""

import threading
from collections.abc import Mapping

from edgepack.agent.generation.texts import TextRequest
from edgepack.agent.runtime.sessions import Tensor
from edgepack.agent.serving.answers import Answering
from edgepack.agent.serving.closing import Closing
from edgepack.agent.serving.following import Follower
from edgepack.agent.serving.opened import OpenedModel
from edgepack.agent.serving.text_generation import OwnGeneration
from edgepack.agent.serving.text_pieces import Generation
from edgepack.agent.serving.writing import Writing
from edgepack.errors import DeviceError
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice

HOLD_S = 600.0
"""How long a session keeps a release that was replaced, by default: a long text, a short stream."""

MAX_HOLD_S = 24 * 3600.0


class ModelSession(Answering, Writing, Closing):
    """Inferences on a single release of a model, from the first to the last.

    Made by `Model.session`. Use the session as a context manager, or `close` it.

    Example:
        ```python
        import numpy as np

        from edgepack.agent import ModelSession, open_model

        def follow(session: ModelSession, frames: list[np.ndarray]) -> list[np.ndarray]:
            return [session.run({"x": frame})["y"] for frame in frames]

        with open_model("defects") as model, model.session() as session:
            follow(session, [np.zeros((1, 3, 8, 8), np.float32)])
        ```
    """

    def __init__(self, follower: Follower, *, hold_s: float, owner: object = None) -> None:
        if not 0.0 <= hold_s <= MAX_HOLD_S:
            raise ValueError(f"hold_s is 0 to {MAX_HOLD_S:g} seconds, not {hold_s}")
        self._follower, self._owner = follower, owner  # The model lives as long as its sessions.
        self._hold_s = hold_s
        self._replaced_at: float | None = None
        self._held: OpenedModel | None = None
        self._because = ""
        self._guard = threading.Lock()
        opened = follower.hold(self)
        self._bundle, self._choice = opened.pointer.bundle, opened.pointer.choice
        self._held = opened

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run an inference on the session's release; see `Model.run`.

        Raises:
            ValueError: The feeds do not fit the inputs, or the session or the model is closed.
            DeviceError: The provider failed; or a newer release serves, and the session's time
                for its own is over.

        Example:
            ```python
            import numpy as np

            from edgepack.agent import open_model

            with open_model("defects") as model, model.session() as session:
                print(session.run({"x": np.zeros((1, 3, 8, 8), np.float32)})["y"])
            ```
        """
        return self._release().run(feeds)

    def _begin_text(self, request: TextRequest) -> Generation:
        return OwnGeneration(self, request, closes_session=False)

    def release(self) -> OpenedModel:
        """Return the release that is held.

        Raises:
            ValueError: The session or the model is closed.
            DeviceError: The session's time for its release is over.
        """
        return self._release()

    def _release(self) -> OpenedModel:
        follower, held = self._follower, self._held
        if follower.is_foreign:
            raise ValueError(
                "the session was begun before this process was forked: begin another one here, "
                "with model.session()"
            )
        if follower.is_closed:
            raise ValueError("the model is closed")
        if held is None:
            raise self._ended()
        return held

    @property
    def bundle(self) -> BundleRef:
        """The bundle that runs the session's inferences."""
        return self._bundle

    @property
    def choice(self) -> Choice:
        """Choice of the variant of this session, with the reason."""
        return self._choice

    def close(self) -> None:
        """End the session: its release may be freed."""
        self._because = self._because or "closed"
        self._let_go()
        self._follower.let_go(self)

    def look(self, serving: OpenedModel, now: float) -> bool:
        """Return True if the release is still held; see `Holder.look`."""
        held = self._held
        if held is None:
            return self._because == ""  # It is being made.
        if held is serving:
            self._replaced_at = None
        elif self._replaced_at is None:
            self._replaced_at = now
        if self._replaced_at is not None and now - self._replaced_at >= self._hold_s:
            newer = serving.pointer.bundle.version
            self._because = f"version {newer} serves, and {self._hold_s:g} s of hold_s are over"
            self._let_go()
        return self._held is not None

    def _let_go(self) -> None:
        if self._follower.is_foreign:
            return
        with self._guard:
            held, self._held = self._held, None
        if held is not None:
            held.let_go()

    def _ended(self) -> Exception:
        if self._because == "closed":
            return ValueError("the session is closed")
        return DeviceError(
            f"the session's release {self._bundle.version} is no longer held: {self._because}",
            remedy="begin a new session, with a new state",
        )
