"""Webhooks: signed messages to other systems, repeated until accepted."""
