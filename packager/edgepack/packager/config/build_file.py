"""Reader of an `edgepack.toml`: model, inputs, outputs, and defaults of options."""

import codecs
import os
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from edgepack.decoding import convert_value, decode_toml
from edgepack.errors import BuildError, parse_problem
from edgepack.packager.config.about import AboutSection, DatasetSection, check_about
from edgepack.packager.config.inputs import InputDeclaration
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.profiles.schema import Preference, ProfileSections
from edgepack.packager.profiles.section import Section
from edgepack.packager.source.fixed_inputs import Numbers
from edgepack.text import printable
from edgepack.toml_errors import describe_type_error

CONFIG_FILE = "edgepack.toml"

_OF_PROFILE = (
    ProfileSections,
    "move it to a profile: mine.toml, with [profile] name = 'mine' and extends = 'cpu', then "
    "--profile mine.toml",
)


class ModelSection(Section, frozen=True, kw_only=True):
    """`[model]`: name, version for people, and the release counter (from the version if None)."""

    name: str = ""
    version: str = ""
    release: int | None = None


class SamplesSection(Section, frozen=True, kw_only=True):
    """`[calibration]`: a path relative to the file, or `random:N`."""

    path: str = ""


class EvaluationSection(Section, frozen=True, kw_only=True):
    """`[evaluation]`: held-out samples, and optionally a file with the class of each."""

    path: str = ""
    labels: str = ""


class BuildSection(Section, frozen=True, kw_only=True):
    """`[build]`: defaults of the options of `edgepack build`."""

    profiles: tuple[str, ...] = ()
    shape: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    value: dict[str, bool | int | float | Numbers] = msgspec.field(default_factory=dict)
    metric: str = ""
    hooks: str = ""
    firmware: tuple[str, ...] = ()
    feedback: str = ""
    toolchain: dict[str, str] = msgspec.field(default_factory=dict)
    plain_runtimes: tuple[str, ...] = ()
    budget: str = ""
    leave_out_pictures: bool = False
    prefer: Preference | None = None

    @property
    def values(self) -> dict[str, Numbers]:
        """Inputs that become constants, a single number as a list."""
        return {
            name: value if isinstance(value, tuple) else (value,)
            for name, value in self.value.items()
        }


class BuildConfig(Section, frozen=True, kw_only=True):
    """A whole `edgepack.toml`.

    Attributes:
        search: `[search]`: keys of the profiles, each with a list of values to try.
    """

    model: ModelSection = ModelSection()
    about: AboutSection = AboutSection()
    datasets: dict[str, DatasetSection] = msgspec.field(default_factory=dict)
    inputs: dict[str, InputDeclaration] = msgspec.field(default_factory=dict)
    outputs: dict[str, OutputDeclaration] = msgspec.field(default_factory=dict)
    calibration: SamplesSection = SamplesSection()
    evaluation: EvaluationSection = EvaluationSection()
    build: BuildSection = BuildSection()
    search: dict[str, Any] = msgspec.field(default_factory=dict)


_SECTION_AND_KEY = re.compile(r"^[ \t]*(\[[^\[\]\n]+\])[ \t]+([\w.-]+[ \t]*=.*)$", re.MULTILINE)


def _split_section(content: bytes) -> str:
    """Return the remedy for a section with a key in the same line; "" without such a line."""
    found = _SECTION_AND_KEY.search(content.decode(errors="replace"))
    if found is None:
        return ""
    return f"write {printable(found[1])} and {printable(found[2].strip())} in lines of their own"


def read_config(path: Path) -> BuildConfig:
    """Read and check an `edgepack.toml`; its paths become relative to the current folder.

    Args:
        path: The file.

    Raises:
        BuildError: The file is missing, not TOML, or has an unknown or ill-typed key, or an invalid
            license, URL or digest.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BuildError(
            f"cannot read {path}: {error.strerror}", remedy="edgepack init MODEL writes one"
        ) from error
    try:
        settings = decode_toml(content.removeprefix(codecs.BOM_UTF8))
        config = convert_value(settings, BuildConfig)
    except msgspec.ValidationError as error:
        found = describe_type_error(error, settings, BuildConfig, _OF_PROFILE)
        raise BuildError(
            f"{path.name}: {found.problem}",
            found_in=f"{path}, {found.place}" if found.place else str(path),
            remedy=found.remedy or "edgepack init MODEL -o example.toml shows every key",
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BuildError(
            f"{path.name} is wrong: {parse_problem(error)}",
            found_in=str(path),
            remedy=_split_section(content) or "edgepack init MODEL -o example.toml shows every key",
        ) from error
    about, datasets = check_about(config.about, config.datasets, str(path))
    folder = path.parent
    build = config.build
    evaluation = EvaluationSection(
        path=_anchor(config.evaluation.path, folder),
        labels=_anchor(config.evaluation.labels, folder),
    )
    build = replace(
        build,
        profiles=tuple(
            str(folder / name) if name.endswith(".toml") else name for name in build.profiles
        ),
        hooks=_anchor(build.hooks, folder),
        firmware=tuple(_anchor_file(each, folder) for each in build.firmware),
        feedback=_anchor(build.feedback, folder),
        toolchain={name: _program(python, folder) for name, python in build.toolchain.items()},
        plain_runtimes=tuple(_program(python, folder) for python in build.plain_runtimes),
    )
    return replace(
        config,
        about=about,
        datasets=datasets,
        calibration=SamplesSection(path=_anchor(config.calibration.path, folder)),
        evaluation=evaluation,
        build=build,
    )


def _program(name: str, folder: Path) -> str:
    return str(folder / name) if os.sep in name else name


def _anchor(path: str, folder: Path) -> str:
    return path if not path or path.startswith("random:") else str(folder / path)


def _anchor_file(text: str, folder: Path) -> str:
    """Return `NAME=FILE` with a file relative to the current folder."""
    name, equals, path = text.partition("=")
    return f"{name}{equals}{_anchor(path, folder)}"
