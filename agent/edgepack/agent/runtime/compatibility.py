"""Compatibility of precompiled contexts with this device, before any of them is downloaded.

A provider writes a token into each context that it compiles; the manifest repeats the token. The
provider of this device judges the token. Only "unsupported" rejects a variant: a provider that has
no opinion, or fails, leaves the decision to the probe.

    python -m edgepack.agent.runtime.compatibility   (a child: `Question` on stdin, `Answer` on
                                                      stdout, a line of JSON each)
"""

import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import msgspec

from edgepack.agent.runtime.child import keep_stdout_clean, run_child, take_request
from edgepack.agent.runtime.provider_table import known_provider
from edgepack.agent.runtime.providers import load_runtime, plugin_devices
from edgepack.bundle.manifest import Variant
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError
from edgepack.halt import NEVER, Halt
from edgepack.python_child import python_command

log = logging.getLogger(__name__)

CHILD = python_command("edgepack.agent.runtime.compatibility")
TIMEOUT_S = 120.0
"""Of a cold start from a slow disk, as for the facts."""
UNSUPPORTED = "EP_UNSUPPORTED"


class Precompiled(msgspec.Struct, frozen=True, kw_only=True):
    """Token of a variant's context.

    Attributes:
        variant, provider, device: As in the manifest.
        token: The provider's compatibility string.
    """

    variant: str
    provider: str
    device: str
    token: str


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens for the child."""

    contexts: tuple[Precompiled, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Opinions of the child.

    Attributes:
        opinions: By variant: ONNX Runtime's word, or why there is none.
    """

    opinions: dict[str, str]


def find_unsupported(variants: Sequence[Variant], halt: Halt = NEVER) -> dict[str, str]:
    """Return the variants whose context this device's provider does not support, with reasons.

    Args:
        variants: Variants that fit this device otherwise.
        halt: Ends the child early.

    Raises:
        HaltedError: `halt` ended the child.
    """
    contexts = tuple(
        Precompiled(
            variant=one.name,
            provider=one.provider,
            device=one.device,
            token=one.compatibility_string,
        )
        for one in variants
        if one.compatibility_string
    )
    if not contexts:
        return {}
    request = msgspec.json.encode(Question(contexts=contexts))
    ending = run_child(CHILD, request, timeout_s=TIMEOUT_S, halt=halt)
    because, opinions = ending.because, {}
    if ending.answer is not None:
        try:
            opinions = decode_json(ending.answer, Answer).opinions
        except msgspec.DecodeError as error:
            because = f"its answer cannot be read: {error}"
    if because:
        log.warning("the compatibility of precompiled variants is not known: %s", because)
    return {
        one.variant: f"{one.provider} does not support its precompiled context here "
        f"(compatibility string {one.token!a:.100})"
        for one in contexts
        if opinions.get(one.variant) == UNSUPPORTED
    }


def judge(question: Question, runtime: ModuleType) -> Answer:
    """Ask the providers of this process for their opinions.

    Args:
        question: The tokens.
        runtime: The module `onnxruntime`.
    """
    ask: Any = getattr(
        getattr(runtime.capi, "_pybind_state", None), "get_model_compatibility_for_ep_devices", None
    )
    opinions = {}
    for one in question.contexts:
        if ask is None:
            opinions[one.variant] = f"onnxruntime {runtime.__version__} judges no token"
            continue
        try:
            devices = _devices(runtime, one)
            found = ask(devices, one.token) if devices else None
            opinions[one.variant] = found.name if found is not None else "no such device is here"
        except Exception as error:  # noqa: BLE001 (the library's exceptions share no base class)
            opinions[one.variant] = str(error)[:500]
    return Answer(opinions=opinions)


def _devices(runtime: ModuleType, one: Precompiled) -> list[Any]:
    """Return a provider's devices of the kind of a variant; all if none is of that kind.

    A simulator runs on another kind of device.

    Raises:
        DeviceError: The plug-in is not usable.
    """
    known = known_provider(one.provider)
    if known.plugin is not None:
        found = plugin_devices(runtime, known)
    else:
        listed = runtime.get_ep_devices() if hasattr(runtime, "get_ep_devices") else []
        found = [device for device in listed if device.ep_name == one.provider]
    of_kind = [device for device in found if device.device.type.name.lower() == one.device]
    return of_kind or found


def main() -> None:
    """Answer the parent's question. For the child."""
    question = decode_json(take_request(), Question)
    with keep_stdout_clean(TIMEOUT_S) as stream:
        try:
            answer = judge(question, load_runtime())
        except DeviceError as error:
            answer = Answer(opinions={one.variant: error.problem for one in question.contexts})
        stream.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
