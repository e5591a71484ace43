"""Where the embedded log and Kafka are, for programs other than the coordinator. The names and sources are those of the coordinator's
settings: options, then `SLUICE_…` variables, then the TOML file that SLUICE_CONFIG names, then defaults.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from sluice.core.errors import BadSettings
from sluice.core.text import HOST_AND_PORT
from sluice.disks import checked_path


def checked_bootstrap(servers: str) -> str:
    """Bootstrap servers of Kafka; "" if there are none. Raises ValueError."""
    if servers and not all(re.fullmatch(HOST_AND_PORT, each.strip()) for each in servers.split(",")):
        raise ValueError("write HOST:PORT, or several with commas")
    return servers


class StreamSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="ignore")

    home: Path = Field(Path(".sluice"), validate_default=True)
    log_dir: Path | None = None
    kafka_bootstrap: str = ""
    kafka_properties: Path | None = None

    @field_validator("kafka_bootstrap")
    @classmethod
    def _servers(cls, given: str) -> str:
        return checked_bootstrap(given)

    @field_validator("home", "log_dir")
    @classmethod
    def _utf8(cls, given: Path | None) -> Path | None:
        return None if given is None else checked_path(given)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = os.environ.get("SLUICE_CONFIG")
        return (init_settings, env_settings, *([TomlConfigSettingsSource(settings_cls, Path(file))] if file else []))

    @property
    def log_directory(self) -> Path:
        return (self.log_dir or self.home / "log").absolute()


def read_stream_settings(**options: object) -> StreamSettings:
    """Options that are None were not given. Raises BadSettings."""
    file = os.environ.get("SLUICE_CONFIG")
    if file and not Path(file).is_file():
        raise BadSettings(f"SLUICE_CONFIG names {file}, which is not a file")
    try:
        return StreamSettings(**{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        raise BadSettings("; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())) from error
    except ValueError as error:  # the file is not TOML
        raise BadSettings(str(error)) from error
