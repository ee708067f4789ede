"""Benchmark of drift: false changes of unshifted months, shifts found, and estimated losses."""
