"""Reaching out where MQTT's port is closed: web addresses, proxies, WebSockets."""
