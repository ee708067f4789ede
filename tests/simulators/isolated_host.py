"""A host with a name server without names that prints each question.

    unshare --net --mount python tests/simulators/isolated_host.py COMMAND …

In a separate network namespace the program sets up the loopback interface and a name server, runs
the command, prints each question on a line, and ends with the command.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading

_SET_FLAGS = 0x8914  # SIOCSIFFLAGS of <linux/sockios.h>
_IS_UP = 0x1  # IFF_UP of <net/if.h>
_NO_SUCH_NAME = b"\x81\x83"
_MOUNT = ("mount", "--bind")


def _set_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14s", b"lo", _IS_UP, b""))


def _answer(questions: socket.socket) -> None:
    while True:
        asked, who = questions.recvfrom(4096)
        labels, rest = [], asked[12:]
        while rest and rest[0]:
            labels.append(rest[1 : rest[0] + 1].decode("ascii", "replace"))
            rest = rest[rest[0] + 1 :]
        print("asked for", ".".join(labels), flush=True)
        questions.sendto(asked[:2] + _NO_SUCH_NAME + asked[4:6] + bytes(6) + asked[12:], who)


def main(command: list[str]) -> int:
    """Run the command on an isolated host."""
    _set_up_loopback()
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
        settings.write("nameserver 127.0.0.1\n")
        settings.flush()
        subprocess.run([*_MOUNT, settings.name, os.path.realpath("/etc/resolv.conf")], check=True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as questions:
            questions.bind(("127.0.0.1", 53))
            threading.Thread(target=_answer, args=(questions,), daemon=True).start()
            return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
