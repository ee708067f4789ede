"""Decoders of texts: built from their weights, or taken from folders of other exporters."""
