"""Webhooks: messages to other systems, signed, sent again until they are taken."""
