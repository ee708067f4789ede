"""Benchmarks: tables that `make bench` prints, from real models and real tasks."""
