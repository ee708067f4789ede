"""Names of content in a registry: `oci://host[:port]/repository[:tag][@sha256:digest]`."""

import re

import msgspec

from edgepack.errors import TransferError

SCHEME = "oci://"
_REFERENCE = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::\d{1,5})?|\[[0-9a-fA-F:]+\](?::\d{1,5})?)"
    r"/(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
MAX_LETTERS = 512
DEFAULT_TAG = "latest"


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Reference by the grammar of the OCI distribution specification.

    Attributes:
        host: Host, with its port if given.
        repository: Path of the repository.
        tag: "" where there is none.
        digest: `sha256:…` of the manifest, or "".
    """

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """Name for the request of a manifest: the digest if known."""
        return self.digest or self.tag or DEFAULT_TAG

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{SCHEME}{self.host}/{self.repository}{tag}{digest}"


def read_reference(text: str) -> Reference:
    """Read a reference.

    Raises:
        TransferError: The text is not a reference.
    """
    found = _REFERENCE.fullmatch(text.removeprefix(SCHEME)) if len(text) <= MAX_LETTERS else None
    if found is None or not text.startswith(SCHEME):
        raise TransferError(
            f"{text[:200]!a} names nothing in a registry",
            remedy="oci://registry.example/models/defects:1.2.0, in lower-case letters",
        )
    return Reference(
        host=found["host"],
        repository=found["repository"],
        tag=found["tag"] or "",
        digest=found["digest"] or "",
    )
