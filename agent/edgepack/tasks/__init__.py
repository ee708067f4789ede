"""Evaluation of accuracy: meaning of outputs, and agreement of two models."""
