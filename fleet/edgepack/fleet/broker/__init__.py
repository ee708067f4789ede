"""The MQTT broker: reaching one, running one on this machine, settings for mosquitto."""
