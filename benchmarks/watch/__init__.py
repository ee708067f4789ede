"""Benchmarks of the watch: time from a fault to the action, false actions, and cost."""
