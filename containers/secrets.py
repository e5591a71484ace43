"""Resolves the references to secrets in a run's config, in the container that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from sluice.core.access.secrets import SecretReference, Source, parse_reference
from sluice.core.errors import BadSettings

LONGEST = 1 << 20
"""The maximum size of a secret in bytes. Java key stores do not belong here."""


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """`values`: the config with the secrets in place of their references. `secret`: the names of the entries that were references."""

    values: Mapping[str, str]
    secret: frozenset[str]


def resolve_secrets(config: Mapping[str, str], environment: Mapping[str, str], directory: Path) -> ResolvedConfig:
    """`directory`: where Kubernetes Secrets are mounted, each as a directory of its keys. Raises BadConfig, BadSettings."""
    references = {name: found for name, value in config.items() if (found := parse_reference(name, value)) is not None}
    secrets = {name: _read(name, reference, environment, directory) for name, reference in references.items()}
    return ResolvedConfig({**config, **secrets}, frozenset(secrets))


def _read(name: str, reference: SecretReference, environment: Mapping[str, str], directory: Path) -> str:
    match reference.source:
        case Source.ENVIRONMENT:
            if reference.name not in environment:
                raise BadSettings(f"config {name} refers to the variable {reference.name}, which the container's environment does not have")
            return environment[reference.name]
        case Source.FILE:
            return _text(name, Path(reference.name))
        case Source.KUBERNETES:
            return _text(name, directory / reference.name)
        case _:
            assert_never(reference.source)


def _text(name: str, file: Path) -> str:
    """The text of a file, without the line break at its end."""
    try:
        with file.open("rb") as opened:
            found = opened.read(LONGEST + 1)
    except OSError as error:
        raise BadSettings(f"config {name} refers to the secret {file}, which cannot be read: {error.strerror}") from error
    if len(found) > LONGEST:
        raise BadSettings(f"config {name} refers to {file}, which is larger than {LONGEST:,} bytes")
    try:
        return found.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise BadSettings(f"config {name} refers to {file}, which is not UTF-8 text") from error
