"""Evaluates maps of classes."""
