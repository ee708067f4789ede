"""Texts from a decoder: tokenizer, chat template, cache, sampling and stop strings."""
