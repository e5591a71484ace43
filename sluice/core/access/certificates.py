"""Identities by client certificates (mutual TLS): the name in a certificate, and the roles that the settings give it.

TLS has verified the certificate against the authorities of the settings. Its fields have the form of `ssl.SSLSocket.getpeercert`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from sluice.core.access.tokens import Grant, Rights

PEER_CERTIFICATE = "peer_certificate"
"""The key of a connection's certificate in the state of its requests."""

MAX_NAME = 180
"""Maximum length of a name, in characters."""


@dataclass(frozen=True, slots=True)
class CertificateRow:
    """`name`: of the certificate; `*` stands for any text."""

    name: str
    grant: Grant


def name_of(certificate: Mapping[str, Any]) -> str:
    """The first URI of the certificate (as of SPIFFE), else its first DNS name, else its common name; "" if it has no usable name."""
    names = list(_names(certificate))
    for kind in ("URI", "DNS", "commonName"):
        for found, name in names:
            if found == kind:
                return name if name.isascii() and name.isprintable() and len(name) <= MAX_NAME else ""
    return ""


def _names(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from certificate.get("subjectAltName", ())
    for attributes in certificate.get("subject", ()):
        yield from attributes


def expiry_of(certificate: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)


def rights_of(name: str, rows: tuple[CertificateRow, ...]) -> Rights:
    """The grants of all rows for this name."""
    return Rights(tuple(row.grant for row in rows if name and fnmatchcase(name, row.name)))
