"""The coordinator's settings, read once: flags, then `SLUICE_…` variables, then the file that SLUICE_CONFIG names (TOML), then defaults."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from sluice.core.errors import BadName, BadSettings
from sluice.core.failover import FailOver
from sluice.core.grouping import is_allowance
from sluice.core.ids import checked_name
from sluice.core.lease import LeasePolicy


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="ignore")

    home: Path = Field(Path(".sluice"), description="where the database, the log and local state live unless said otherwise")
    host: str = Field("127.0.0.1", description="the address to listen on; only loopback unless `insecure`")
    port: int = Field(8180, ge=0, le=65535, description="0 chooses a free one")
    insecure: bool = Field(False, description="listen beyond loopback although nothing is authenticated")
    database_url: str = Field("", description="an SQLAlchemy URL with an async driver; default: coordinator.db under home")
    log_dir: Path | None = Field(None, description="the embedded log's directory; default: log under home")
    kafka_bootstrap: str = Field("", max_length=2000, description="host:port,host:port of the Kafka cluster that is the system `kafka`")
    kafka_properties: Path | None = Field(None, description="a client.properties file: security.protocol, sasl.*, ssl.*")
    kafka_replication: int = Field(-1, ge=-1, description="replicas of the topics that the coordinator makes; -1 = the brokers' default")
    groupers: Annotated[tuple[str, ...], NoDecode] = Field((), description="classes of users, module:Class or module:*, that runs may name")
    lease_seconds: float = 40
    heartbeat_seconds: float = 5
    margin_seconds: float = Field(3, description="how much before its lease's end a container stops")
    grace_seconds: float = Field(5, description="how long after a lease's end its tasks are kept back")
    heartbeat_max_rate: float = Field(2500, description="heartbeats per second over all containers; a larger fleet beats more slowly")
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024)
    notices_wait_seconds: float = Field(30, gt=0, le=300, description="the longest that a poll for notices is held")
    log_keep_seconds: float = Field(3600, ge=0, description="how long records of intermediate streams are kept at least")
    blob_stores: Annotated[dict[str, str], NoDecode] = Field(
        {}, description='where state is backed up to, name -> URL; default {"local": "file://HOME/blobs"}'
    )
    backup_stores: Annotated[tuple[str, ...] | None, NoDecode] = Field(None, description="the names that runs back up to; default: all")
    restore_from: Annotated[tuple[str, ...] | None, NoDecode] = Field(None, description="the names that runs restore from, in order")
    keep_last: int = Field(10, ge=1, le=100_000, description="how many snapshots of each store are retained")
    keep_hourly: int = Field(0, ge=0, le=100_000, description="of how many hours the last snapshot is retained besides")
    keep_daily: int = Field(0, ge=0, le=100_000, description="of how many days the last snapshot is retained besides")
    retire_after_seconds: float = Field(7 * 86400, ge=0, description="how long snapshots of a stage that a job has not any more are kept")
    gc_every_seconds: float = Field(3600, gt=0, description="how often garbage is looked for in the blob stores")
    gc_grace_seconds: float = Field(
        86400,
        ge=60,
        description="how long a blob that nothing refers to is left alone; must exceed what a commit can take, which is twice the "
        "containers' commit_max_delay_seconds and commit_timeout_seconds: else they refuse to start",
    )
    gc_max_deletes_per_second: float = Field(1000, gt=0, description="how fast garbage is deleted")
    blob_ttl_seconds: float = Field(30 * 86400, gt=0, description="the time to live with which agents upload blobs, for the alert")

    drain_soft_seconds: float = Field(60, gt=0, le=1e9, description="how long a drain may take before it names the late")
    drain_hard_seconds: float = Field(600, gt=0, le=1e9, description="how long a drain may take before it fails")
    drain_stopping_seconds: float = Field(60, gt=0, le=1e9, description="the budget of a drain's phase STOPPING: the running batches")
    drain_flushing_seconds: float = Field(300, gt=0, le=1e9, description="the budget of a drain's phase FLUSHING")
    drain_committing_seconds: float = Field(120, gt=0, le=1e9, description="the budget of a drain's phase COMMITTING: the last backup")

    partition_monitor_seconds: float = Field(60, gt=0, le=1e6, description="how often the partition counts of jobs' inputs are looked at")
    failover_after_seconds: float = Field(
        300, ge=0, le=1e9, description="how long a slot may have no container before the others get its tasks; 0 = for ever"
    )
    failover_give_back: bool = Field(True, description="whether a slot that returns gets tasks again by itself")
    hold_back_seconds: float = Field(
        5, ge=0, le=300, description="how long a slot that failed again and again is held back at first; doubled each time; 0 = never"
    )

    @field_validator("groupers", "backup_stores", "restore_from", mode="before")
    @classmethod
    def _listed(cls, given: object) -> object:
        """A variable holds the list as JSON."""
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given)
        except ValueError as error:
            raise ValueError('a JSON list is needed, as in ["module:Class"] or ["local"]') from error

    @field_validator("blob_stores", mode="before")
    @classmethod
    def _named(cls, given: object) -> object:
        """A variable holds the object as JSON."""
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given)
        except ValueError as error:
            raise ValueError('a JSON object of URLs is needed, as in {"local": "file:///var/lib/sluice/blobs"}') from error

    @field_validator("blob_stores")
    @classmethod
    def _names_of_stores(cls, stores: dict[str, str]) -> dict[str, str]:
        for name in stores:
            checked_name("blob store", name)
        return stores

    @model_validator(mode="after")
    def _known_stores(self) -> Settings:
        for name in (*(self.backup_stores or ()), *(self.restore_from or ())):
            if name not in self.blob_places:
                raise ValueError(f"no blob store {name!r} is configured: there is {', '.join(self.blob_places)}")
        return self

    @field_validator("groupers")
    @classmethod
    def _allowances(cls, groupers: tuple[str, ...]) -> tuple[str, ...]:
        for each in groupers:
            if not is_allowance(each):
                raise ValueError(f"{each!r} allows nothing: name a class as module:Class, or a module's as module:*")
        return groupers

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
    def database(self) -> str:
        return self.database_url or f"sqlite+aiosqlite:///{(self.home / 'coordinator.db').absolute()}"

    @property
    def database_shown(self) -> str:
        """For logs and people: without the password."""
        return re.sub(r"(?<=://)([^:/@]*):[^/]*@", r"\1:***@", self.database)

    @property
    def log_directory(self) -> Path:
        return (self.log_dir or self.home / "log").absolute()

    @property
    def blob_places(self) -> dict[str, str]:
        """Name -> URL."""
        return self.blob_stores or {"local": (self.home / "blobs").absolute().as_uri()}

    @property
    def fail_over(self) -> FailOver:
        """What holds for runs whose configuration says nothing."""
        return FailOver(timedelta(seconds=self.failover_after_seconds) or None, self.failover_give_back)

    @property
    def gc_grace(self) -> timedelta:
        return timedelta(seconds=self.gc_grace_seconds)

    @property
    def lease_policy(self) -> LeasePolicy:
        """Raises BadSettings, naming the inequality that fails."""
        return LeasePolicy(
            lease=timedelta(seconds=self.lease_seconds),
            interval=timedelta(seconds=self.heartbeat_seconds),
            margin=timedelta(seconds=self.margin_seconds),
            grace=timedelta(seconds=self.grace_seconds),
            max_rate=self.heartbeat_max_rate,
        )


def read_settings(**flags: object) -> Settings:
    """Settings from everywhere, checked against each other. Flags that are None were not given. Raises BadSettings."""
    file = os.environ.get("SLUICE_CONFIG")
    if file and not Path(file).is_file():
        raise BadSettings(f"SLUICE_CONFIG names {file}, which is not a file")
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]
        _ = settings.lease_policy
    except (ValidationError, ValueError, OverflowError, BadName) as error:
        raise BadSettings(_told(error)) from error
    if not settings.insecure and not _is_loopback(settings.host):
        raise BadSettings(f"host {settings.host} is not loopback and nothing is authenticated yet: listen on 127.0.0.1, or say --insecure")
    return settings


def _told(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']} (got {each['input']!r})" for each in error.errors())
    return str(error)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
