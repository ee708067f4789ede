"""Settings of an OpenID Connect provider: a TOML file."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from edgepack.decoding import convert_value, decode_toml
from edgepack.errors import FleetError, parse_problem
from edgepack.fleet.documents.access import ROLES, Role
from edgepack.toml_errors import describe_type_error

CALLBACK = "/login/oidc/callback"
ANYBODY = "*"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of logins.

    Attributes:
        issuer: The provider's issuer identifier, an https URL.
        client_id: Id of this fleet at the provider.
        client_secret_file: File with the client's secret in its first line; "" for a public client.
        url: URL of the fleet for browsers; the provider redirects browsers to this URL.
        scopes: Requested scopes.
        roles_claim: The claim with a person's groups or roles: a text, or a list of texts.
        name_claim: The claim with the user's name for the audit log.
        roles: By role, the value of that claim; "*" gives the role to every user who can log in.
        title: Name of the provider on the login page.
    """

    issuer: str
    client_id: str
    url: str
    client_secret_file: str = ""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    roles_claim: str = "groups"
    name_claim: str = "email"
    roles: dict[Role, tuple[str, ...]]
    title: str = "single sign-on"

    @property
    def redirect_url(self) -> str:
        """URL to which the provider redirects a browser."""
        return self.url.rstrip("/") + CALLBACK

    def role_of(self, claims: dict[str, Any]) -> Role | None:
        """Return the highest role of a user's claims; None for a user without access."""
        found = claims.get(self.roles_claim, ())
        words = {found} if isinstance(found, str) else set(_texts(found))
        for role in reversed(ROLES):
            wanted = self.roles.get(role, ())
            if ANYBODY in wanted or words.intersection(wanted):
                return role
        return None


def read_settings(path: Path) -> tuple[OidcSettings, str]:
    """Read the file, and the client's secret ("" if none).

    Raises:
        FleetError: A file cannot be read, or makes no sense.
    """
    try:
        document = decode_toml(path.read_bytes())
        settings = convert_value(document, OidcSettings)
        secret = ""
        if settings.client_secret_file:
            text = (path.parent / settings.client_secret_file).read_text()
            secret = text.partition("\n")[0].strip()
    except OSError as error:
        raise FleetError(
            f"the settings of the login cannot be read: {error.strerror}",
            found_in=str(error.filename or path),
        ) from error
    except msgspec.ValidationError as error:
        found = describe_type_error(error, document, OidcSettings)
        raise FleetError(
            found.problem, found_in=f"{path}, {found.place}", remedy=found.remedy
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FleetError(
            f"the settings of the login are not valid TOML: {parse_problem(error)}",
            found_in=str(path),
        ) from error
    for key, url in (("issuer", settings.issuer), ("url", settings.url)):
        if not is_safe(url):
            raise FleetError(f"{url[:80]!a} is not an https:// URL", found_in=f"{path}, {key}")
    if "openid" not in settings.scopes:
        raise FleetError("OpenID Connect takes the scope openid", found_in=f"{path}, scopes")
    if not any(settings.roles.values()):
        raise FleetError(
            "no role is given to anybody",
            found_in=f"{path}, roles",
            remedy='[roles]\nadmin = ["fleet-admins"]\nviewer = ["*"]',
        )
    return settings, secret


def is_safe(url: str) -> bool:
    """Return True if a URL is https; http is for this machine alone."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if not parts.hostname or not url.isascii() or not url.isprintable() or " " in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def _texts(found: Any) -> list[str]:
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
