"""MQTT broker: connections, an embedded broker on this machine, settings for mosquitto."""
