"""Forms of HTTP: the parts of a `multipart/form-data` body (RFC 7578), without a copy of files."""

import re
from email.message import Message
from itertools import islice, pairwise

from edgepack.agent.server.http_messages import HttpError

MAX_PARTS = 32
MAX_HEAD_BYTES = 4096
"""Of a part."""
MAX_BOUNDARY = 70
"""RFC 2046."""

_BOUNDARY = re.compile(rf"[0-9A-Za-z'()+_,./:=? -]{{0,{MAX_BOUNDARY - 1}}}[0-9A-Za-z'()+_,./:=?-]")
_END_OF_HEAD = b"\r\n\r\n"


def read_form(kind: bytes, body: memoryview) -> dict[str, memoryview]:
    """Return the contents of the parts by their names.

    Args:
        kind: The field Content-Type of the request.
        body: The body.

    Raises:
        HttpError: The body is no form, is malformed, or has two parts of one name.
    """
    line = b"--" + _find_boundary(kind)
    found = re.finditer(re.escape(b"\r\n" + line), body)
    places = [0, *(one.start() + 2 for one in islice(found, MAX_PARTS + 1))]
    if bytes(body[: len(line)]) != line:
        raise HttpError(400, "the form does not begin with its boundary")
    if len(places) > MAX_PARTS + 1:
        raise HttpError(400, f"the form has more than {MAX_PARTS} parts")
    form: dict[str, memoryview] = {}
    for place, stop in pairwise([*places, len(body)]):
        start = place + len(line)
        behind = bytes(body[start : start + 2])
        if behind == b"--" and place == places[-1]:
            return form
        part = body[start + 2 : max(stop - 2, start + 2)]
        end = bytes(part[:MAX_HEAD_BYTES]).find(_END_OF_HEAD)
        if behind != b"\r\n" or end < 0 or place == places[-1]:
            break
        name = _find_name(bytes(part[:end]))
        if name in form:
            raise HttpError(400, f"the form has two parts {name[:60]!a}")
        form[name] = part[end + len(_END_OF_HEAD) :]
    raise HttpError(
        400,
        f"part {len(form) + 1} of the form is malformed: a part has a head of at most "
        f"{MAX_HEAD_BYTES} bytes and an empty line, and --BOUNDARY-- ends the form",
    )


def _find_boundary(kind: bytes) -> bytes:
    message = Message()
    message["Content-Type"] = kind.decode("latin-1")
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise HttpError(
            400, "the request is no form: Content-Type: multipart/form-data; boundary=…"
        )
    if not _BOUNDARY.fullmatch(boundary):
        raise HttpError(400, f"the boundary of the form is malformed: {boundary[:80]!a}")
    return boundary.encode()


def _find_name(head: bytes) -> str:
    message = Message()
    for line in head.split(b"\r\n"):
        field, _, value = line.decode("utf-8", "replace").partition(":")
        if field.strip().lower() == "content-disposition":
            message["Content-Disposition"] = value.strip()
            break
    name = message.get_param("name", header="Content-Disposition")
    if message.get_content_disposition() != "form-data" or not isinstance(name, str) or not name:
        raise HttpError(
            400, "a part of the form has no name: Content-Disposition: form-data; name=…"
        )
    return name
