"""Request for a build: options of the command line, and an `edgepack.toml`.

An option counts before the file, and the file before the default (`derive_request`).
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from edgepack.errors import BuildError
from edgepack.packager.bundling.output import (
    ARCHIVE_SUFFIX,
    check_name,
    choose_release,
    read_output_name,
)
from edgepack.packager.config.about import AboutSection, DatasetSection
from edgepack.packager.config.build_file import BuildConfig, read_config
from edgepack.packager.config.inputs import InputDeclaration
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.config.trusted_code import TrustedCode, find_in_config, require_trust
from edgepack.packager.gates.user_metric import Metric, load_metric
from edgepack.packager.profiles.schema import Preference
from edgepack.packager.search.combinations import SearchedKey, read_searched
from edgepack.packager.search.time_limit import parse_duration
from edgepack.packager.source.fixed_inputs import Numbers
from edgepack.tasks.arrays import Tensor

BUILDER_VARIABLE = "EDGEPACK_BUILDER_ID"
UNNAMED_BUILDER = "urn:edgepack:builder:unnamed"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")

SampleSource = str | Path | Iterable[Mapping[str, Tensor]]
"""Where samples are: a path, `random:N`, or the arrays themselves, one dictionary a sample."""


class BuildOptions(TypedDict, total=False):
    """Options of a build; each may be left out.

    Attributes:
        output: An archive where it ends in `.edgepack`, else a folder; by default
            `NAME-VERSION.edgepack` in the current folder.
        profiles: Hardware profiles, names or paths of TOML files, in the order of preference.
        key: What signs the bundle: a private key file (PEM), or a PKCS #11 URI.
        config: An `edgepack.toml`: what it says stands in for the options that are left out.
        name: Model name; by default from the output's or the model's name.
        version: Model version, e.g. `1.2.0`; by default from the output's name.
        release: Release counter; by default 1002000 for version 1.2.0.
        created_at: RFC 3339 time to record; by default `SOURCE_DATE_EPOCH`, else none, so that
            equal inputs give equal bytes.
        builder_id: URI that names who builds, for the provenance; by default
            `EDGEPACK_BUILDER_ID`, else `urn:edgepack:builder:unnamed`.
        calibration: Samples for ranges and for the search: a folder of .npz, .npy or images, one
            .npz with a leading sample axis, ONNX test data, `random:N`, or an iterable of
            dictionaries: by input name an array of the input's shape and dtype, one sample each.
        evaluation: Held-out samples likewise; by default a share of the calibration is held out.
        labels: File with the class of each evaluation sample, one a line.
        metric: Your own measure of accuracy: a function or `module:function`. It is called with
            `run`, which takes the inputs of one inference by name and returns the outputs by name,
            and returns a number, greater is better.
        search: Values of the profiles' settings to try, by key:
            `{"quantize.activations": ["uint8", "uint16"]}`.
        budget: Time for the build: seconds, or a text like `90s`, `10m`, `1h`; no limit by
            default.
        prefer: `speed`, `size` or `balanced`: what counts, in place of what each profile says.
        shapes: Shapes to fix, by input name.
        values: Inputs that become constants of the model, by name.
        toolchains: By the name of a profile the Python interpreter of an environment that has what
            its devices have; its variant is tried, compiled and rehearsed there.
        plain_runtimes: Python interpreters of environments with other releases of ONNX Runtime,
            such as the oldest that applications have: variants are run there by themselves too.
        hooks: Folder of firmware hooks to ship with the model.
        feedback: File of `edgepack fleet feedback`: what devices measured of earlier releases. It
            leaves out profiles that lost to the CPU everywhere, and orders the others.
        captured: Folders of samples that devices captured (`edgepack-agent samples`): they are
            added to those for ranges, and judge nothing.
        encrypt_to: Certificates or public keys (PEM) of the devices, or of the fleet, that may read
            variants and golden samples, or folders of certificates; none by default, which encrypts
            nothing.
        delta_from: Older bundles that devices run: where it spares them enough, the new bundle
            carries what changed since, packed short. Nothing depends on it.
        allow_degraded: Publish a variant that misses its budget, marked as degraded.
        keep_going: Build the other profiles when one refuses.
        replace: Replace a bundle that is there already.
        trust_config: Allow the programs, libraries and modules that `config` and profiles name:
            True for all, or the `NamedCode` entries that a person confirmed; by default none.
    """

    output: str | Path | None
    profiles: Sequence[str | Path]
    key: str | Path | None
    config: str | Path | None
    name: str | None
    version: str | None
    release: int | None
    created_at: str | None
    builder_id: str | None
    calibration: SampleSource | None
    evaluation: SampleSource | None
    labels: str | Path | None
    metric: str | Metric | None
    search: Mapping[str, Any] | Sequence[SearchedKey]
    budget: str | float | None
    prefer: Preference | None
    shapes: Mapping[str, Sequence[int]]
    values: Mapping[str, Numbers]
    toolchains: Mapping[str, str]
    plain_runtimes: Sequence[str]
    hooks: str | Path | None
    feedback: str | Path | None
    captured: Sequence[str | Path]
    encrypt_to: Sequence[str | Path]
    delta_from: Sequence[str | Path]
    allow_degraded: bool
    keep_going: bool
    replace: bool
    trust_config: TrustedCode


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a build.

    Attributes:
        model: The ONNX file, or the local Hugging Face model folder.
        output, name, version, release, created_at, builder_id, profiles, key, calibration,
            evaluation, shapes, values, metric, labels, hooks, feedback, captured, encrypt_to,
            delta_from,
            toolchains, plain_runtimes, allow_degraded, keep_going, replace, trust_config: See
            `BuildOptions`; "" and None stand for what is left out.
        declarations, outputs: Declared inputs and outputs by name.
        declared_in: The file they came from.
        about, datasets: What it says of the model and of its data.
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
    metric: Metric | None = None
    labels: Path | None = None
    searched: tuple[SearchedKey, ...] = ()
    budget_s: float | None = None
    prefer: Preference | None = None
    hooks: Path | None = None
    feedback: Path | None = None
    captured: tuple[Path, ...] = ()
    encrypt_to: tuple[Path, ...] = ()
    delta_from: tuple[Path, ...] = ()
    toolchains: Mapping[str, str] = msgspec.field(default_factory=dict)
    plain_runtimes: tuple[str, ...] = ()
    allow_degraded: bool = False
    keep_going: bool = False
    replace: bool = False
    trust_config: TrustedCode = False


def derive_request(model: str | Path, options: BuildOptions) -> BuildRequest:
    """Derive the request from options, from their file, and from defaults.

    Args:
        model: The ONNX file, or a local Hugging Face model folder.
        options: What was given.

    Raises:
        BuildError: Something is missing, or cannot be.
    """
    model, config_path = Path(model), options.get("config")
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
        declarations=config.inputs,
        outputs=config.outputs,
        declared_in=declared_in,
        metric=load_metric(metric) if isinstance(metric, str) and metric else metric or None,
        labels=_path(options.get("labels") or config.evaluation.labels),
        searched=(*read_searched(config.search, declared_in), *_searched(options)),
        budget_s=_budget_s(options.get("budget"), config.build.budget, declared_in),
        prefer=options.get("prefer") or config.build.prefer,
        hooks=_path(options.get("hooks") or config.build.hooks),
        feedback=_path(options.get("feedback") or config.build.feedback),
        captured=tuple(map(Path, options.get("captured", ()))),
        encrypt_to=tuple(map(Path, options.get("encrypt_to", ()))),
        delta_from=tuple(map(Path, options.get("delta_from", ()))),
        toolchains={**config.build.toolchain, **options.get("toolchains", {})},
        plain_runtimes=tuple(options.get("plain_runtimes", ())) or config.build.plain_runtimes,
        allow_degraded=options.get("allow_degraded", False),
        keep_going=options.get("keep_going", False),
        replace=options.get("replace", False),
        trust_config=trusted,
    )


def _replaced(options: BuildOptions) -> frozenset[str]:
    """Return the keys of `[build]` that name code and that an option replaces."""
    given = {key for key in ("metric", "hooks", "plain_runtimes") if options.get(key)}
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
    """Return what the file and the output's name give, or the one that gives something.

    Raises:
        BuildError: They contradict each other: nobody could tell which release it is.
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
        BuildError: It is not a duration.
    """
    if given is None:
        return parse_duration(configured, f"{path}, [build] budget") if configured else None
    return parse_duration(given if isinstance(given, str) else f"{given}s", "--budget")


def _builder_id(given: str | None) -> str:
    """Return the builder: the option, else the environment, else a default.

    Raises:
        BuildError: It is not a URI.
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
        BuildError: It is not a time.
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
