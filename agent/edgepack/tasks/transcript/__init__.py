"""Evaluates texts that a model writes token by token: transcripts, translations, summaries."""
