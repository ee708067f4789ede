"""The serving model for applications with a runtime of their own, as variables of a shell."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from edgepack.agent.model_commands.serving import find_serving
from edgepack.agent.runtime import providers
from edgepack.agent.runtime.opening import fill_in_options
from edgepack.agent.state.slots import slot_folder
from edgepack.bundle.slot import verify_variant
from edgepack.errors import DeviceError

PREFIX = "EDGEPACK_MODEL_"


class ServingFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Facts with which another runtime opens the serving model.

    Attributes:
        name, version, release: The release.
        digest: Digest of the bundle; a new digest is a new release.
        variant: The chosen variant.
        path: Path of the model file, which another process must not change.
        provider: ONNX Runtime's name of the execution provider.
        device: Device kind: `cpu`, `gpu` or `npu`.
        library: Path of the plug-in's library to register; "" for a built-in provider.
        options: Options of the provider, complete for this device.
        session_options: Config entries of the session.
        state_dir: The agent's state folder.
    """

    name: str
    version: str
    release: int
    digest: str
    variant: str
    path: str
    provider: str
    device: str
    library: str
    options: Mapping[str, str]
    session_options: Mapping[str, str]
    state_dir: str


def read_serving_files(state_dir: Path, name: str) -> ServingFiles:
    """Return the facts of the serving model, after a check of the files' digests.

    Args:
        state_dir: The agent's state folder.
        name: The model.

    Raises:
        EdgepackError: Nothing serves, files are damaged, or the bundle is encrypted.
    """
    pointer = find_serving(state_dir, name)
    folder = slot_folder(state_dir.resolve(), pointer.digest)
    try:
        manifest = verify_variant(folder, pointer.digest, pointer.choice.chosen)
    except OSError as error:
        raise DeviceError(
            f"the model's files cannot be read: {error.strerror}",
            found_in=str(error.filename or folder),
            remedy="run the command as a member of the state folder's group",
        ) from error
    if manifest.facts.encryption is not None:
        raise DeviceError(
            "the bundle is encrypted, so that no plain model file exists on this device",
            found_in=str(folder),
            remedy="open the model by open_model or the model server, which decrypt into memory",
        )
    variant = manifest.variant(pointer.choice.chosen)
    known = providers.known_provider(variant.provider)
    library, options = "", dict(variant.provider_options)
    if known.plugin is not None and providers.is_installed(known.plugin):
        library = str(providers.plugin_module(known.plugin).get_library_path())
        options = fill_in_options(known.plugin, variant.device, options)
    return ServingFiles(
        name=name,
        version=pointer.bundle.version,
        release=pointer.bundle.release,
        digest=pointer.digest,
        variant=variant.name,
        path=str(folder / variant.folder / variant.model_file),
        provider=variant.provider,
        device=variant.device,
        library=library,
        options=options,
        session_options={**known.session_options, **variant.session_options},
        state_dir=str(state_dir.resolve()),
    )


def shell_lines(files: ServingFiles) -> str:
    """Return assignments for a shell's `eval`; every value is quoted, mappings are JSON."""
    lines = []
    for key in files.__struct_fields__:
        value = getattr(files, key)
        text = json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)
        lines.append(f"{PREFIX}{key.upper()}={shlex.quote(text)}")
    return "\n".join(lines)
