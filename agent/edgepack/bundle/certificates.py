"""Exceptions of the package cryptography for certificates and requests that cannot be read."""

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

UNREADABLE = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Some when it is parsed, some when a part of it is looked at first; not all are `ValueError`."""
