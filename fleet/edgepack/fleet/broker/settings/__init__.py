"""Settings for brokers that know the fleet's certificates and let nobody read another's."""
