"""Request for a build: options of the command line, and an `edgepack.toml`.

An option counts before the file, and the file before the default (`derive_request`).
"""

import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from edgepack.errors import BuildError
from edgepack.packager.bundling.output import (
    ARCHIVE_SUFFIX,
    check_name,
    choose_release,
    read_output_name,
)
from edgepack.packager.bundling.shipped_firmware import ShippedFirmware, parse_firmware
from edgepack.packager.config.about import AboutSection, DatasetSection
from edgepack.packager.config.build_file import BuildConfig, read_config
from edgepack.packager.config.inputs import InputDeclaration
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.config.trusted_code import TrustedCode, find_in_config, require_trust
from edgepack.packager.gates.user_metric import Metric, load_metric
from edgepack.packager.pipeline.build_options import (
    BUILDER_VARIABLE,
    BuildOptions,
    SampleSource,
)
from edgepack.packager.profiles.schema import Preference
from edgepack.packager.search.combinations import SearchedKey, read_searched
from edgepack.packager.search.time_limit import parse_duration
from edgepack.packager.source.fixed_inputs import Numbers

UNNAMED_BUILDER = "urn:edgepack:builder:unnamed"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a build.

    Attributes:
        model: The ONNX file, or the local Hugging Face model folder.
        output, name, version, release, created_at, builder_id, profiles, key, calibration,
            evaluation, shapes, values, context, adapters, base, decryption_key, metric, labels,
            hooks, firmware, feedback, captured, encrypt_to, delta_from, toolchains, prove,
            prove_wheels, plain_runtimes, allow_degraded, strict, keep_going, leave_out_pictures,
            replace, trust_config: See `BuildOptions`; "" and None stand for unset options.
        float_model: The base's source model, for an adapter; None if not given. The adapter itself
            is `model`.
        declarations, outputs: Declared inputs and outputs by name.
        declared_in: The file of the declarations.
        about, datasets: Statements of that file about the model and its data.
        searched: Settings with several values to try.
        budget_s: Seconds that the build may take; None for no limit.
    """

    model: Path
    output: Path
    name: str
    version: str
    release: int
    created_at: str = ""
    builder_id: str = UNNAMED_BUILDER
    about: AboutSection = AboutSection()
    datasets: Mapping[str, DatasetSection] = msgspec.field(default_factory=dict)
    profiles: tuple[str, ...]
    key: str | Path
    calibration: SampleSource = ""
    evaluation: SampleSource = ""
    shapes: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    values: Mapping[str, Numbers] = msgspec.field(default_factory=dict)
    declarations: Mapping[str, InputDeclaration] = msgspec.field(default_factory=dict)
    outputs: Mapping[str, OutputDeclaration] = msgspec.field(default_factory=dict)
    declared_in: str = ""
    context: int | None = None
    adapters: bool = False
    base: Path | None = None
    decryption_key: Path | None = None
    float_model: Path | None = None
    metric: Metric | None = None
    labels: Path | None = None
    searched: tuple[SearchedKey, ...] = ()
    budget_s: float | None = None
    prefer: Preference | None = None
    hooks: Path | None = None
    firmware: tuple[ShippedFirmware, ...] = ()
    feedback: Path | None = None
    captured: tuple[Path, ...] = ()
    leave_out_pictures: bool = False
    encrypt_to: tuple[Path, ...] = ()
    delta_from: tuple[Path, ...] = ()
    toolchains: Mapping[str, str] = msgspec.field(default_factory=dict)
    prove: tuple[str, ...] = ()
    prove_wheels: Path | None = None
    plain_runtimes: tuple[str, ...] = ()
    allow_degraded: bool = False
    strict: bool = False
    keep_going: bool = False
    replace: bool = False
    trust_config: TrustedCode = False


def derive_request(model: str | Path | None, options: BuildOptions) -> BuildRequest:
    """Derive the request from options, from their file, and from defaults.

    Args:
        model: The ONNX file, or a local Hugging Face model folder; None only for an adapter.
        options: Given options.

    Raises:
        BuildError: Something is missing, or cannot be.
    """
    float_model = _check_adapter(model, options)
    model, config_path = Path(options.get("adapter") or model or ""), options.get("config")
    config = read_config(Path(config_path)) if config_path else BuildConfig()
    trusted = options.get("trust_config", False)
    if config_path:
        require_trust(find_in_config(config, config_path, _replaced(options)), trusted)
    declared_in = str(config_path or "")
    output = _path(options.get("output"))
    named, numbered = read_output_name(output) if output else ("", "")
    told = config.model
    name = options.get("name") or _agreed("name", told.name, named, config_path) or model.stem
    name = check_name(name)
    version = _version(str(options.get("version") or ""), told.version, numbered, config_path)
    if not version:
        raise BuildError(
            "the model has no version",
            remedy=f"--version 1.0.0, or -o {name}-1.0.0{ARCHIVE_SUFFIX}",
        )
    key = str(options.get("key") or "")
    if not key:
        raise BuildError(
            "a bundle is signed, and no private key was named",
            remedy="edgepack keys generate -o release, then --key release.key",
        )
    release, metric = options.get("release"), options.get("metric") or config.build.metric
    shapes = {**config.build.shape, **options.get("shapes", {})}
    return BuildRequest(
        model=model,
        output=output or Path(f"{name}-{version}{ARCHIVE_SUFFIX}"),
        name=name,
        version=version,
        release=choose_release(version, config.model.release if release is None else release),
        created_at=_creation_time(options.get("created_at")),
        builder_id=_builder_id(options.get("builder_id")),
        about=config.about,
        datasets=config.datasets,
        profiles=tuple(map(str, options.get("profiles", ()))) or config.build.profiles,
        key=key,
        calibration=_samples(options.get("calibration"), config.calibration.path),
        evaluation=_samples(options.get("evaluation"), config.evaluation.path),
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        values={**config.build.values, **options.get("values", {})},
        context=options.get("context"),
        adapters=options.get("adapters", False),
        base=_path(options.get("base")),
        decryption_key=_path(options.get("decryption_key")),
        float_model=float_model,
        declarations=config.inputs,
        outputs=config.outputs,
        declared_in=declared_in,
        metric=load_metric(metric) if isinstance(metric, str) and metric else metric or None,
        labels=_path(options.get("labels") or config.evaluation.labels),
        searched=(*read_searched(config.search, declared_in), *_searched(options)),
        budget_s=_budget_s(options.get("budget"), config.build.budget, declared_in),
        prefer=options.get("prefer") or config.build.prefer,
        hooks=_path(options.get("hooks") or config.build.hooks),
        firmware=tuple(map(parse_firmware, options.get("firmware") or config.build.firmware)),
        feedback=_path(options.get("feedback") or config.build.feedback),
        captured=tuple(map(Path, options.get("captured", ()))),
        leave_out_pictures=(
            options.get("leave_out_pictures", False) or config.build.leave_out_pictures
        ),
        encrypt_to=tuple(map(Path, options.get("encrypt_to", ()))),
        delta_from=tuple(map(Path, options.get("delta_from", ()))),
        toolchains={**config.build.toolchain, **options.get("toolchains", {})},
        prove=tuple(options.get("prove", ())),
        prove_wheels=_path(options.get("prove_wheels")),
        plain_runtimes=tuple(options.get("plain_runtimes", ())) or config.build.plain_runtimes,
        allow_degraded=options.get("allow_degraded", False),
        strict=options.get("strict", False),
        keep_going=options.get("keep_going", False),
        replace=options.get("replace", False),
        trust_config=trusted,
    )


_OF_ADAPTERS = frozenset(
    {"adapter", "allow_degraded", "base", "builder_id", "calibration", "config", "created_at"}
    | {
        "decryption_key",
        "encrypt_to",
        "evaluation",
        "key",
        "name",
        "output",
        "release",
        "replace",
        "strict",
    }
    | {"trust_config", "version"}
)
"""Options that a build of an adapter has."""


def _check_adapter(model: str | Path | None, options: BuildOptions) -> Path | None:
    """Check that the options belong to an adapter, or to another model.

    Returns:
        The source model of an adapter's base, if it is given.

    Raises:
        BuildError: An option is missing, or does not belong there.
    """
    adapter, base = options.get("adapter"), options.get("base")
    if not adapter:
        if base or options.get("decryption_key") or model is None:
            named = "a base" if base else "a key to decrypt a base"
            raise BuildError(
                "no model was named" if model is None else f"{named} was named, and no adapter",
                remedy="edgepack build MODEL …"
                if model is None
                else "--adapter FOLDER --base BUNDLE",
            )
        return None
    if not base:
        raise BuildError(
            "an adapter belongs to a base, and no bundle of a base was named",
            found_in="--adapter",
            remedy="--base chat-1.0.0.edgepack, built with --adapters",
        )
    others = sorted(
        "--" + name.replace("_", "-")
        for name, value in options.items()
        if value and name not in _OF_ADAPTERS
    )
    if others:
        raise BuildError(
            f"an adapter takes no {', '.join(others)}: variants, context and runtime are those of "
            "its base",
            found_in="--adapter",
            remedy="leave the options out, or build the base with these",
        )
    return _path(model)


def _replaced(options: BuildOptions) -> frozenset[str]:
    """Return the keys of `[build]` that name code and that an option replaces."""
    given = {key for key in ("metric", "hooks", "firmware", "plain_runtimes") if options.get(key)}
    return frozenset(given | {f"toolchain.{name}" for name in options.get("toolchains", {})})


def _version(given: str, configured: str, in_output: str, path: str | Path | None) -> str:
    """Return the version, which the option or the output's name gives, else the file.

    Raises:
        BuildError: Two places contradict each other.
    """
    if given and in_output and given != in_output:
        raise BuildError(
            f"the version is {in_output} by the output's name, and {given} by --version",
            found_in="--output, --version",
            remedy="give the version once: by the output's name alone, or by --version with a "
            "name that has no version",
        )
    if not given and configured and in_output and configured != in_output:
        raise BuildError(
            f"the version is {in_output} by the output's name, and {configured} by {path}",
            found_in=f"{path}, [model] version",
            remedy=f"remove version from {path}: the output's name gives it, or --version does",
        )
    return given or configured or in_output


def _agreed(what: str, configured: str, in_output: str, path: str | Path | None) -> str:
    """Return the common value of file and output name, or the value of either.

    Raises:
        BuildError: The values contradict each other, so the release would be ambiguous.
    """
    if configured and in_output and configured != in_output:
        raise BuildError(
            f"the {what} is {in_output} by the output's name, and {configured} by {path}",
            found_in=f"{path}, [model] {what}",
            remedy=f"correct one of them; or --{what} {in_output}, which counts before both",
        )
    return configured or in_output


def _path(given: str | Path | None) -> Path | None:
    return Path(given) if given else None


def _samples(given: SampleSource | None, configured: str) -> SampleSource:
    if isinstance(given, Path):
        return str(given)
    return configured if given is None or given == "" else given


def _searched(options: BuildOptions) -> Iterable[SearchedKey]:
    search = options.get("search", ())
    return read_searched(search, "search") if isinstance(search, Mapping) else search


def _budget_s(given: str | float | None, configured: str, path: str) -> float | None:
    """Return seconds that the search may take: the option's, else the file's; None for no limit.

    Raises:
        BuildError: The text is not a duration.
    """
    if given is None:
        return parse_duration(configured, f"{path}, [build] budget") if configured else None
    return parse_duration(given if isinstance(given, str) else f"{given}s", "--budget")


def _builder_id(given: str | None) -> str:
    """Return the builder: the option, else the environment, else a default.

    Raises:
        BuildError: The text is not a URI.
    """
    builder = given or os.environ.get(BUILDER_VARIABLE, "") or UNNAMED_BUILDER
    if not _URI.fullmatch(builder):
        raise BuildError(
            f"{builder!a} is not a URI that could name who builds",
            found_in="--builder-id" if given else BUILDER_VARIABLE,
            remedy="--builder-id https://ci.example.com/edgepack",
        )
    return builder


def _creation_time(given: str | None) -> str:
    """Return the time to record: the option, else `SOURCE_DATE_EPOCH`, else none.

    Raises:
        BuildError: The text is not a time.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    try:
        if given:
            time = datetime.fromisoformat(given)
            if time.tzinfo is None:
                time = time.replace(tzinfo=UTC)
            time = time.astimezone(UTC)
        elif epoch:
            time = datetime.fromtimestamp(int(epoch), UTC)
        else:
            return ""
    except (ValueError, OverflowError, OSError) as error:
        raise BuildError(
            f"'{given or epoch}' is not a time",
            found_in="--created-at" if given else "SOURCE_DATE_EPOCH",
            remedy="--created-at 2026-11-21T10:00:00Z"
            if given
            else "seconds since 1970, or unset it: git log -1 --format=%ct",
        ) from error
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
