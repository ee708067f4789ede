"""Examination of a device: checks that change nothing, each with a fact and a remedy."""
