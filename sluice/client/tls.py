"""The authorities that a client trusts, and the certificate that it presents."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from sluice.core.errors import BadSettings
from sluice.renewals.certificates import replace_chain
from sluice.renewals.versions import versions_of

log = logging.getLogger(__name__)

CA_FILE = "SLUICE_CA_FILE"
"""Variable with the name of a PEM file of certificate authorities for the coordinator's certificate. It replaces those of the system."""

CLIENT_CERTIFICATE, CLIENT_KEY = "SLUICE_CLIENT_CERTIFICATE", "SLUICE_CLIENT_KEY"
"""Variables with the names of PEM files: this process's client certificate with its chain, and its key, unless the first file has it."""


def verification(url: str) -> ssl.SSLContext | bool:
    """How httpx verifies the coordinator's certificate, with the client certificate of this process. Raises BadSettings."""
    return TlsFiles().verified(url)


class TlsFiles:
    """The files that the environment names. They are read again when they change, and new connections then use them. Authorities are added;
    those that a file no longer has are trusted until the process ends, because a context cannot forget one."""

    def __init__(self) -> None:
        """Raises BadSettings."""
        authorities, certificate, key = (os.environ.get(name) for name in (CA_FILE, CLIENT_CERTIFICATE, CLIENT_KEY))
        self._authorities = Path(authorities) if authorities else None
        self._certificate = Path(certificate) if certificate else None
        self._key = Path(key) if key and certificate else None
        self._files = [each for each in (self._authorities, self._certificate, self._key) if each is not None]
        self._versions = versions_of(self._files)
        self._context: ssl.SSLContext | None = None
        if not self._files:
            return
        try:
            self._context = ssl.create_default_context(cafile=authorities or None)
        except OSError as error:
            raise BadSettings(f"{CA_FILE}: {authorities} cannot be read as certificates: {error}") from error
        if self._certificate is not None:
            try:
                self._context.load_cert_chain(self._certificate, self._key)
            except OSError as error:
                raise BadSettings(f"{CLIENT_CERTIFICATE}, {CLIENT_KEY}: {certificate} cannot be read with its key: {error}") from error

    def verified(self, url: str) -> ssl.SSLContext | bool:
        """The parameter `verify` of httpx for requests to this URL. Without TLS, the authorities of the system are not loaded, which takes
        a tenth of the time of a short command, and none is trusted."""
        if self._context is not None:
            return self._context
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.startswith("http://") else True

    def refresh(self) -> None:
        """Load the files if they have changed. If they do not match, because only one of them has been replaced yet, the former ones are
        used until they do."""
        found = versions_of(self._files)
        if self._context is None or found is None or found == self._versions:
            return
        try:
            if self._certificate is not None:
                replace_chain(self._context, self._certificate, self._key)
            if self._authorities is not None:
                self._context.load_verify_locations(self._authorities)
        except OSError as error:
            log.warning("cannot load the new files of %s: %s", " and ".join(map(str, self._files)), error)
            return
        self._versions = found
        log.info("reloaded %s", " and ".join(map(str, self._files)))
