"""Place of the private key that opens encrypted bundles, published by the agent for applications.

`decryption.json` in the state folder names the file; the key itself is never in there.
"""

from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import read_regular, remove
from edgepack.durable import is_disk_fault, write_file
from edgepack.errors import DeviceError
from edgepack.versions import Format, NewerVersionError, Version

KEY_PLACE_FILE = "decryption.json"


class KeyPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Place of the key.

    Attributes:
        key_file: Path of the private key.
    """

    key_file: str


KEY_PLACE = Format("place of the decryption key", KeyPlace, Version(1, 0))


def write_key_file(state_dir: Path, key_file: str) -> None:
    """Note where the key lies, once; "" where the device has none.

    Raises:
        OSError: The state folder cannot be written.
    """
    path = state_dir / KEY_PLACE_FILE
    content = KEY_PLACE.encode(KeyPlace(key_file=str(Path(key_file).resolve())))
    if not key_file:
        remove(path)
        return
    try:
        is_known = read_regular(path) == content
    except OSError as error:
        if is_disk_fault(error):
            raise
        remove(path)  # No regular file.
        is_known = False
    if not is_known:
        write_file(path, content)


def read_key_file(state_dir: Path) -> str:
    """Return path of the private key; "" where the agent noted none.

    Raises:
        DeviceError: The note cannot be read; the agent repairs the note at its next start.
    """
    path = state_dir / KEY_PLACE_FILE
    try:
        content = read_regular(path)
        return KEY_PLACE.decode(content).value.key_file if content is not None else ""
    except (OSError, ValueError, NewerVersionError) as error:
        raise DeviceError(
            "cannot read the path of the decryption key",
            found_in=str(path),
            remedy="start the agent, which repairs the file",
        ) from error
