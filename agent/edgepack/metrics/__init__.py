"""Metrics of devices and fleets: one table, as text for Prometheus and as OTLP."""
