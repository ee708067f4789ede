"""Compilation ahead of time: a model becomes a provider's own binary for a chip (EPContext).

On a plain Linux box, with QNN's simulator; the compiler runs in a child process with a time limit
(`compile_child`). Afterwards the context is loaded again and run next to its source model: a
context that can run here must give the same outputs, and any other is reported as not verified.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import onnx
from msgspec.structs import replace

from edgepack.agent.runtime.opening import ProviderSettings
from edgepack.agent.runtime.providers import (
    Plugin,
    is_installed,
    known_provider,
    load_runtime,
    read_sdks,
)
from edgepack.agent.runtime.sessions import Tensor
from edgepack.agent.runtime.versions import parse_version
from edgepack.bundle.manifest import Placement
from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import drop_unused_opsets, lowest_ir_version
from edgepack.packager.passes.compile_child import QNN, CompileAnswer, CompileRequest
from edgepack.packager.profiles.chips import ARCH_OPTION_TAKES, Chip, find_chip
from edgepack.packager.profiles.schema import Compile, Limits, Provider
from edgepack.packager.runtime.deadline import Deadline, OutOfTimeError
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain, ask_child
from edgepack.packager.tensors.exchange import write_tensors
from edgepack.python_child import python_command

MODULE = "edgepack.packager.passes.compile_child"
CHILD = python_command(MODULE)
MODEL_FILE = "model.onnx"

SAME_NRMSE = 0.05
"""Outputs of context and model may differ by this; 16-bit sums vary in the simulator."""

_STAMP = re.compile(rb"soc_type=(\w+);arch=(\d+)")
"""What QNN SDK 2.51 writes into a binary. The compatibility string only echoes the options."""

_ONLY_HERE = {"enable_htp_shared_memory_allocator": "0"}
"""Options for compiling on a machine without the chip's shared memory."""


class CompiledContext(msgspec.Struct, frozen=True, kw_only=True):
    """A context on disk.

    Attributes:
        folder: Holds its files and nothing else.
        model_file: The model inside `folder` that loads the context.
        compiled_for: The chip, for people and the manifest: `v68 (SM8350)`.
        compatibility_string: The provider's token; begins with SDK and blob versions.
        provider_options: Options for the variant: requested options and the chip's options.
        placement: Which nodes the provider took while compiling; `verified` says whether the
            context then ran here and gave the model's outputs.
        because: Result of loading the context again, as a sentence.
        tools: Versions of the ONNX Runtime and the SDK of the compilation.
    """

    folder: Path
    model_file: str
    compiled_for: str
    compatibility_string: str
    provider_options: dict[str, str]
    placement: Placement
    because: str
    tools: dict[str, str]

    @property
    def required_sdks(self) -> dict[str, str]:
        """Version ranges of the SDKs on a device that reads the context, by the names of its facts.

        An SDK reads contexts of the same or an older version with the same major version (QNN SDK's
        rules for cached contexts); an older SDK rejects the context, and the model would fall back
        to the CPU.
        """
        sdks = {name: text for name, text in self.tools.items() if name != "onnxruntime"}
        return {
            name: f">={text},<{parse_version(text)[0] + 1}" for name, text in sorted(sdks.items())
        }


def compile_context(
    model_path: Path,
    out_dir: Path,
    feeds: Mapping[str, Tensor],
    settings: Compile,
    provider: Provider,
    limits: Limits,
    *,
    toolchain: PinnedToolchain | None = None,
    deadline: Deadline | None = None,
    command: Sequence[str] = CHILD,
) -> CompiledContext:
    """Compile a prepared model for a Qualcomm chip and load the result again.

    1. The chip must be known, and QNN be here.
    2. A child compiles; the provider must have taken nodes.
    3. The binary must be for that chip: QNN only warns of an unknown architecture.
    4. The file gets the lowest IR version of its operator sets: ONNX Runtime writes its own newest
       version, and older releases reject such a file.
    5. A child runs context and model on a sample; if both run, the outputs must agree.

    Args:
        model_path: The quantized model, with static shapes.
        out_dir: Empty or absent folder for the context.
        feeds: A sample, for the comparison.
        settings: The chip, options that count only while compiling, and the limit of each child.
        provider: Options that the variant has on the device.
        limits: Opsets and IR versions that the devices read.
        toolchain: The environment of the compiling SDK, a device's; None for this environment.
        deadline: The end of the build; None for no end.
        command: The child here.

    Raises:
        BuildError: The chip is unknown, the compiler fails, hangs or crashes, or the context
            gives other outputs than the model, or needs an IR version beyond the limits.
        OutOfTimeError: The deadline came before the context was compiled.
    """
    deadline = deadline or Deadline()
    chip = find_chip(soc_model=settings.soc_model, htp_arch=settings.htp_arch)  # 1
    known = known_provider(QNN)
    if known.plugin is None or not (toolchain or is_installed(known.plugin)):
        raise BuildError(
            f"compiling for v{chip.htp_arch} needs {QNN}, which is not installed",
            found_in="[compile]",
            remedy=known.brought_by,
        )
    if out_dir.exists() and any(out_dir.iterdir()):
        raise ValueError(f"{out_dir} is not empty")
    out_dir.mkdir(parents=True, exist_ok=True)
    child = toolchain.command(MODULE) if toolchain else command
    options = _chip_options(chip, known.plugin, provider.options)
    request = CompileRequest(
        step="compile",
        model=str(model_path.resolve()),
        context=str(out_dir.resolve() / MODEL_FILE),
        settings=ProviderSettings(
            provider=QNN,
            device="npu",
            provider_options={**options, **_ONLY_HERE, **settings.options},
            session_options=provider.session,
        ),
        timeout_s=settings.timeout_s,
    )
    where = f"{model_path.name} for v{chip.htp_arch} ({chip.known_as})"
    compiled = _ask(request, where, child, deadline)  # 2
    placement = compiled.placement
    if placement is None or not placement.taken or not (out_dir / MODEL_FILE).is_file():
        raise BuildError(
            f"{QNN} took none of the model's {placement.total if placement else 0} nodes",
            found_in=where,
            remedy="see the placement gate's reasons, or build without [compile]",
        )
    _check_chip(out_dir, chip, where)  # 3
    _lower_ir_version(out_dir / MODEL_FILE, limits, where)  # 4
    ran_here, because = _compare(request, options, feeds, child, deadline)  # 5
    return CompiledContext(
        folder=out_dir,
        model_file=MODEL_FILE,
        compiled_for=f"v{chip.htp_arch} ({chip.soc})",
        compatibility_string=_read_compatibility(out_dir / MODEL_FILE),
        provider_options=options,
        placement=replace(placement, verified=ran_here),
        because=because,
        tools=_tools(known.plugin, toolchain),
    )


def _tools(plugin: Plugin, toolchain: PinnedToolchain | None) -> dict[str, str]:
    """Return versions of the compiling tools."""
    if toolchain is None:
        return {"onnxruntime": load_runtime().__version__, **read_sdks()}
    facts = toolchain.facts
    sdks = {name: text for name, text in facts.drivers.items() if name == plugin.sdk_name}
    return {"onnxruntime": facts.runtime, **sdks}


def _chip_options(chip: Chip, plugin: Plugin, options: Mapping[str, str]) -> dict[str, str]:
    """Return the variant's options with the chip's options in place of any other chip's."""
    kept = {name: value for name, value in options.items() if name not in plugin.chip_options}
    kept["soc_model"] = chip.soc_model
    if chip.htp_arch in ARCH_OPTION_TAKES:
        kept["htp_arch"] = chip.htp_arch
    return kept


def _ask(
    request: CompileRequest, where: str, command: Sequence[str], deadline: Deadline
) -> CompileAnswer:
    """Run a child; any failure there is a `BuildError`, except the end of the build."""
    request = replace(request, timeout_s=deadline.timeout_s(request.timeout_s))
    try:
        answer = ask_child(
            command,
            msgspec.json.encode(request),
            CompileAnswer,
            timeout_s=request.timeout_s,
            failed="the compiler failed",
            found_in=where,
            remedy="raise [compile] timeout_s, or build without [compile]",
        )
    except BuildError:
        deadline.check()  # it may have been ended for that
        raise
    if answer.problem:
        raise BuildError(
            answer.problem,
            found_in=where,
            remedy="another precision or a newer chip, or build without [compile]",
        )
    return answer


def _read_compatibility(path: Path) -> str:
    """Return the provider's own token, which ONNX Runtime writes next to the context."""
    model = onnx.load(path, load_external_data=False)
    tokens = {entry.key: entry.value for entry in model.metadata_props}
    return str(tokens.get(f"ep_compatibility_info.{QNN}", ""))


def _check_chip(folder: Path, chip: Chip, where: str) -> None:
    """Check the binaries' target chip."""
    stamps = {stamp for path in folder.glob("*.bin") for stamp in _STAMP.findall(path.read_bytes())}
    if stamps != {(chip.soc.encode(), chip.htp_arch.encode())}:
        made_for = " and ".join(f"{soc.decode()} v{arch.decode()}" for soc, arch in stamps)
        raise BuildError(
            f"the context is for {made_for or 'an unknown chip'}, asked for was "
            f"{chip.soc} v{chip.htp_arch}",
            found_in=where,
            remedy="use the onnxruntime-qnn that edgepack was tested with",
        )


def _lower_ir_version(path: Path, limits: Limits, where: str) -> None:
    """Write a context's model file again for the oldest ONNX Runtime that reads its operators.

    ONNX Runtime 1.31 writes IR version 13 and 1.32 writes 14, for any source version, and imports
    all known operator sets.
    """
    model = onnx.load(path, load_external_data=False)
    drop_unused_opsets(model)
    model.ir_version = lowest_ir_version(model)
    if model.ir_version > limits.ir_version_max:
        raise BuildError(
            f"the context needs IR version {model.ir_version}, and its devices read up to "
            f"{limits.ir_version_max}",
            found_in=where,
            remedy="lower pass[clean].opset in the profile, or build without [compile]",
        )
    path.write_bytes(model.SerializeToString(deterministic=True))


def _compare(
    request: CompileRequest,
    options: dict[str, str],
    feeds: Mapping[str, Tensor],
    command: Sequence[str],
    deadline: Deadline,
) -> tuple[bool, str]:
    """Run context and model on a sample, in a child; return whether both ran here, and the
    observation.
    """
    folder = Path(request.context).parent
    inputs = folder.with_name(f"{folder.name}.inputs.npz")
    write_tensors(inputs, [dict(feeds)])
    try:
        request = replace(
            request,
            step="compare",
            inputs=str(inputs),
            settings=replace(request.settings, provider_options=options),
        )
        answer = _ask(request, str(folder), command, deadline)
    except BuildError as error:
        return False, f"the context was not verified, it does not run here: {error.problem}"
    except OutOfTimeError:
        return False, "the context was not verified: the time of the build was used up"
    finally:
        inputs.unlink()
    nrmse = answer.nrmse
    if nrmse is None or not nrmse <= SAME_NRMSE:
        raise BuildError(
            f"the compiled context gives other outputs than the model: nrmse {nrmse}, "
            f"at most {SAME_NRMSE}",
            found_in=str(folder),
            remedy="build without [compile], or with another SDK version",
        )
    return True, f"the context ran here and gave the model's outputs, nrmse {nrmse:.5f}"
