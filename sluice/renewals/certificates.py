"""Certificates whose files are replaced while a process uses them."""

from __future__ import annotations

import ssl
from pathlib import Path


def replace_chain(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Load the certificate and its key into a context that has others. Connections that are open keep those. Raises OSError, and changes
    nothing, if the files cannot be read or do not match, as while only one of them has been replaced."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)  # one that fails leaves the context without a key
    context.load_cert_chain(certificate, key)
