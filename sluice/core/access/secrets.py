"""Secrets in a job's config: references instead of values.

The config of a run is stored, displayed and logged, so it must not contain secrets. A reference names a secret, and the container reads
the secret when it is used: `secret:env:NAME` is a variable of the container's environment, `secret:file:PATH` the text of a file, and
`secret:k8s:NAME/KEY` a key of a Kubernetes Secret that is mounted in the container.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluice.core.errors import BadConfig

PREFIX = "secret:"
FORMS = "secret:env:NAME, secret:file:/PATH or secret:k8s:NAME/KEY"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KUBERNETES = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._A-Za-z0-9]+")
"""Name of a Secret, an RFC 1123 subdomain, and a key of its data, see the Kubernetes API reference, Secret v1."""

_SECRET_NAME = re.compile(
    r"(password|passwd|secret|access[._-]?key|secret[._-]?key|private[._-]?key|token|jaas[._-]?config)$", re.IGNORECASE
)
_HARMLESS_VALUE = re.compile(r"|true|false|[0-9]{1,4}", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bsluice-[ti]\.[\w-]{8}|\bpassword\s*=\s*[\"'][^\"']", re.IGNORECASE)


_USER_AND_PASSWORD = re.compile(r"://[^/:]*:.")


class Source(StrEnum):
    ENVIRONMENT = "env"
    FILE = "file"
    KUBERNETES = "k8s"


@dataclass(frozen=True, slots=True)
class SecretReference:
    """`name`: a variable, an absolute path, or "name/key" of a Kubernetes Secret."""

    source: Source
    name: str


def parse_reference(name: str, value: str) -> SecretReference | None:
    """The reference in the value of a config entry; None for any other value. Raises BadConfig for a malformed reference."""
    if not value.startswith(PREFIX):
        return None
    source, _, secret = value.removeprefix(PREFIX).partition(":")
    match source:
        case Source.ENVIRONMENT if _VARIABLE.fullmatch(secret):
            return SecretReference(Source.ENVIRONMENT, secret)
        case Source.FILE if secret.startswith("/"):
            return SecretReference(Source.FILE, secret)
        case Source.KUBERNETES if _KUBERNETES.fullmatch(secret) and ".." not in secret:
            return SecretReference(Source.KUBERNETES, secret)
        case _:
            raise BadConfig(f"config {name}: a reference to a secret is {FORMS}")


def looks_secret(name: str, value: str) -> bool:
    """Whether the value is probably a secret, according to its name or its text. Raises BadConfig for a malformed reference."""
    if parse_reference(name, value) is not None or _HARMLESS_VALUE.fullmatch(value):
        return False
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)) or _has_password(value)


def _has_password(text: str) -> bool:
    """Whether it has a URL with a password, `://USER:PASSWORD@`. One expression for all of it would search the rest of the text from each
    `://`; here each part before an @ is searched once."""
    return any(_USER_AND_PASSWORD.search(part) for word in text.split() for part in word.split("@")[:-1])


def check_secrets(config: Mapping[str, str]) -> None:
    """Raises BadConfig for a value that looks like a secret, without showing it, and for a malformed reference."""
    for name, value in config.items():
        if looks_secret(name, value):
            raise BadConfig(
                f"config {name} looks like a secret, and a run's config is stored and shown: give a reference that the containers resolve, "
                f"{FORMS}"
            )
