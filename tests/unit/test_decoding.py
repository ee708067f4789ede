"""Several threads decode the same struct class for the first time.

With msgspec's own functions in place of these, each run ended with a segmentation fault.
"""

import subprocess
import sys

import pytest

RACE = """
import sys, threading
import msgspec
from edgepack.decoding import convert_value, decode_json, json_decoder

DECODE = {
    "decode_json": lambda kind, text: decode_json(text, kind),
    "convert_value": lambda kind, text: convert_value({"h29": ["a"], "g1": {"f3": {}}}, kind),
    "json_decoder": lambda kind, text: json_decoder(kind).decode(text),
}[sys.argv[1]]
sys.setswitchinterval(1e-6)

def make_kind():
    table = dict[str, tuple[int | None, str]]
    inner = msgspec.defstruct("Inner", [(f"f{i}", table, {}) for i in range(20)])
    fields = [(f"g{i}", inner | None, None) for i in range(5)]
    return msgspec.defstruct("Outer", fields + [(f"h{i}", tuple[str, ...], ()) for i in range(30)])

for _ in range(100):
    kind, start = make_kind(), threading.Barrier(4)

    def decode():
        start.wait()
        DECODE(kind, b'{"h29": ["a"], "h3": ["b"], "g1": {"f3": {"a": [1, "b"]}}}')

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("decoded")
"""


@pytest.mark.parametrize("name", ["decode_json", "convert_value", "json_decoder"])
def test_threads_may_begin_to_decode_a_type_at_the_same_time(name: str) -> None:
    command = [sys.executable, "-c", RACE, name]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert (ended.returncode, ended.stdout) == (0, "decoded\n"), ended.stderr
