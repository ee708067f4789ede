"""Code that a file of the build names, and whether a person allowed it.

An `edgepack.toml` or a profile may come with somebody else's model. Its settings may configure a
build. A program, a library or a module that it names runs only after a person confirmed it: by
`--trust-config`, or once at the terminal, which `TrustedCodeFile` remembers.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from edgepack.durable import write_file
from edgepack.errors import BuildError
from edgepack.packager.config.build_file import BuildConfig
from edgepack.packager.profiles.option_checks import names_code
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.wording import toml_key

TrustedCode = bool | Collection["NamedCode"]
"""True allows all code that files name; a collection allows its entries."""

_MOST_REMEMBERED = 1000


class NamedCode(msgspec.Struct, frozen=True, order=True):
    """A program, library or module that a file names.

    Attributes:
        file: Absolute path of the file.
        key: The setting, as the file writes it.
        value: The program's path, the library's path or the module's name.
    """

    file: str
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.file}, {self.key} = {self.value}"


class UntrustedCodeError(BuildError):
    """Files of the build name code that nobody allowed.

    Attributes:
        code: The entries that nobody allowed.
    """

    def __init__(self, code: Sequence[NamedCode]) -> None:
        super().__init__(
            "the build would run code that a file names, and nobody allowed that code",
            found_in="; ".join(map(str, code)),
            remedy="read the file, then repeat the command with --trust-config",
        )
        self.code = code


def find_in_config(
    config: BuildConfig, path: str | Path, replaced: Collection[str]
) -> Iterator[NamedCode]:
    """Yield the code that an `edgepack.toml` names.

    Args:
        config: The file's content.
        path: The file.
        replaced: Keys of `[build]` that an option replaces; for toolchains `toolchain.PROFILE`.
    """
    build, file = config.build, str(Path(path).resolve())
    entries = [
        ("metric", build.metric),
        ("hooks", build.hooks),
        *((f"toolchain.{name}", python) for name, python in build.toolchain.items()),
        *(("plain_runtimes", python) for python in build.plain_runtimes),
    ]
    for key, value in entries:
        if value and key not in replaced:
            table, _, name = key.partition(".")
            shown = f"{table}.{toml_key(name)}" if name else table
            yield NamedCode(file, f"[build] {shown}", value)


def find_in_profiles(
    profiles: Iterable[Profile], searched: Mapping[str, str]
) -> Iterator[NamedCode]:
    """Yield the libraries that profiles make an execution provider load.

    A shipped profile names none. An option that is newer than edgepack's list may name one.

    Args:
        profiles: The profiles, with the values that are searched.
        searched: The file that names the values, for each key that is searched in a file.
    """
    for profile in profiles:
        for section, options in (
            ("provider.options", profile.provider.options),
            ("compile.options", profile.compile.options),
        ):
            for name, value in options.items():
                if value and names_code(profile.device.provider, name):
                    file, key = profile.source, f"[{section}] {toml_key(name)}"
                    if (full := f"{section}.{name}") in searched:
                        file, key = searched[full], f"[search] {section}.{toml_key(name)}"
                    yield NamedCode(file, key, value)


def require_trust(code: Iterable[NamedCode], trusted: TrustedCode) -> None:
    """Check that a person allowed all code that files name.

    Raises:
        UntrustedCodeError: Some entries are not allowed.
    """
    if trusted is True:
        return
    allowed = frozenset(trusted or ())
    refused = sorted(set(code) - allowed)
    if refused:
        raise UntrustedCodeError(refused)


class TrustedCodeFile:
    """The entries that this user confirmed, in the user's own folder.

    Args:
        path: The file; by default `edgepack/trusted-code.json` below `XDG_STATE_HOME`.
    """

    def __init__(self, path: Path | None = None) -> None:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        self._path = path or Path(base) / "edgepack" / "trusted-code.json"

    def read(self) -> tuple[NamedCode, ...]:
        """Return the confirmed entries; none where the file is missing or damaged."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=tuple[NamedCode, ...])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return ()

    def add(self, code: Sequence[NamedCode]) -> None:
        """Remember entries that the user confirmed.

        Raises:
            OSError: The file cannot be written.
        """
        known = [entry for entry in self.read() if entry not in code]
        entries = [*known, *code][-_MOST_REMEMBERED:]
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(self._path, msgspec.json.encode(entries), mode=0o600)
