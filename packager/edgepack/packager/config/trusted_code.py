"""Code and files named in a file of the build, and their confirmation by a person.

An `edgepack.toml` or a profile may come with somebody else's model. Its settings may configure a
build. A named program, library or module runs only after a person confirmed its file, and so does a
provider that reads or writes a named file: by `--trust-config`, or once at the terminal, which
`TrustedCodeFile` remembers.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from edgepack.decoding import decode_json
from edgepack.durable import write_file
from edgepack.errors import BuildError
from edgepack.packager.config.build_file import BuildConfig
from edgepack.packager.profiles.option_checks import SESSION, names_file
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.wording import toml_key

TrustedCode = bool | Collection["NamedCode"]
"""True allows all code that files name; a collection allows its entries."""

_MOST_REMEMBERED = 1000


class NamedCode(msgspec.Struct, frozen=True, order=True):
    """A program, library or module that a file names, or a file for a provider.

    Attributes:
        file: Absolute path of the file.
        key: The setting, as in the file.
        value: The path, or the module's name.
        folder: Where a value that is not a absolute path is looked for: the current folder. "" for
            an absolute path. A confirmation in a folder does not count in another folder.
    """

    file: str
    key: str
    value: str
    folder: str

    @classmethod
    def named(cls, file: str, key: str, value: str) -> "NamedCode":
        """Return an entry for this process's current folder."""
        folder = "" if Path(value).is_absolute() else str(Path.cwd())
        return cls(file, key, value, folder)

    def __str__(self) -> str:
        is_elsewhere = self.folder not in ("", str(Path(self.file).parent))
        return f"{self.file}, {self.key} = {self.value}" + (
            f" (in {self.folder})" if is_elsewhere else ""
        )


class UntrustedCodeError(BuildError):
    """Files of the build name code that nobody allowed.

    Attributes:
        code: The entries that nobody allowed.
    """

    def __init__(self, code: Sequence[NamedCode]) -> None:
        super().__init__(
            "a file names code for the build to run, or files for a provider to read or write, and "
            "nobody allowed that",
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
        *(("firmware", each.partition("=")[2]) for each in build.firmware),
        *((f"toolchain.{name}", python) for name, python in build.toolchain.items()),
        *(("plain_runtimes", python) for python in build.plain_runtimes),
    ]
    for key, value in entries:
        if value and key not in replaced:
            table, _, name = key.partition(".")
            shown = f"{table}.{toml_key(name)}" if name else table
            yield NamedCode.named(file, f"[build] {shown}", value)


def find_in_profiles(
    profiles: Iterable[Profile], searched: Mapping[str, str]
) -> Iterator[NamedCode]:
    """Yield the libraries that profiles make a provider load, and files that a provider reads or
    writes.

    A shipped profile names none. An option that is newer than edgepack's list may name a file.

    Args:
        profiles: The profiles, with the values that are searched.
        searched: The file that names the values, for each key that is searched in a file.
    """
    for profile in profiles:
        provider = profile.device.provider
        for section, reader, options in (
            ("provider.options", provider, profile.provider.options),
            ("provider.decoder_options", provider, profile.provider.decoder_options),
            ("provider.session", SESSION, profile.provider.session),
            ("compile.options", provider, profile.compile.options),
        ):
            for name, value in options.items():
                if value and names_file(reader, name):
                    file, key = profile.source, f"[{section}] {toml_key(name)}"
                    if (full := f"{section}.{name}") in searched:
                        file, key = searched[full], f"[search] {section}.{toml_key(name)}"
                    yield NamedCode.named(file, key, value)


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
            return decode_json(self._path.read_bytes(), tuple[NamedCode, ...])
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
