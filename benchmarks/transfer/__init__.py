"""Cost of a bundle's transfer to a single device and to many, compared with plain transfers."""
