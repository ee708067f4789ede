"""The other tools, each run as a child process in an environment of its own.

A runner is `python -m benchmarks.peers.PEER --model … --calibration-folder … --setting …
--output …`; it ends with 0 and a written model, with 3 when the tool refused and said why on the
last line, and otherwise with the tool's own exception.
"""
