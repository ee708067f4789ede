"""A browser without a screen: cookies, forms and pages over the standard library."""

import http.client
import re
import ssl
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit


class Answer(NamedTuple):
    """Answer of the dashboard."""

    status: int
    headers: Mapping[str, str]
    text: str


class Visitor:
    """Keeps its session as a browser does.

    Args:
        url: Where the fleet serves.
        trusting: CA file to trust; None for plain HTTP.
    """

    def __init__(self, url: str, trusting: ssl.SSLContext | None = None) -> None:
        self._url, self._trusting = url, trusting
        self.cookies: dict[str, str] = {}

    def get(self, path: str, **headers: str) -> Answer:
        """Open a page; redirections are not followed."""
        return self._ask("GET", path, "", headers)

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        """Send a form."""
        given = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return self._ask("POST", path, urlencode(form), given)

    def log_in(self, token: str) -> "Visitor":
        """Open a session."""
        answer = self.post("/login", {"token": token})
        assert answer.status == 303, answer.text
        return self

    def form_token(self, path: str) -> str:
        """Return the token in the forms of a page."""
        found = re.search(r'name="form_token" value="([0-9a-f]{64})"', self.get(path).text)
        assert found is not None
        return found[1]

    def _ask(self, method: str, path: str, body: str, headers: Mapping[str, str]) -> Answer:
        parts = urlsplit(self._url)
        host, port, trusting = parts.hostname or "", parts.port, self._trusting
        connection = (
            http.client.HTTPSConnection(host, port, timeout=400, context=trusting)
            if trusting is not None
            else http.client.HTTPConnection(host, port, timeout=400)
        )
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, path, body=body, headers={"Cookie": cookie, **headers})
            answer = connection.getresponse()
            for name, value in answer.getheaders():
                if name.lower() == "set-cookie":
                    for key, morsel in SimpleCookie(value).items():
                        self.cookies[key] = morsel.value
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read().decode())
        finally:
            connection.close()
