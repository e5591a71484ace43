"""The coordinator's settings, read once: options, then variables `SLUICE_…`, then the TOML file named by SLUICE_CONFIG, then defaults."""

from __future__ import annotations

import json
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from sluice.core.access.browsers import LOCALHOST
from sluice.core.access.credentials import without_credentials
from sluice.core.access.metrics_address import parse_scrape_hosts
from sluice.core.access.networks import parse_address, parse_networks, parse_open_networks
from sluice.core.access.roles import Role
from sluice.core.access.spark_settings import ALLOWED
from sluice.core.errors import BadName, BadSettings
from sluice.core.ids import checked_name
from sluice.core.jobmodels.grouping import is_allowance
from sluice.core.leases.failover import FailOver
from sluice.core.leases.lease import LeasePolicy
from sluice.core.pruning import HistoryPolicy
from sluice.disks import checked_path
from sluice.streams.settings import checked_bootstrap
from sluice.wire.access import Pattern as JobPattern

_SQLITE = re.compile(r"sqlite\+aiosqlite://(/.*)?")
_POSTGRESQL = re.compile(r"postgresql\+asyncpg://([^:/]*(:[^@]*)?@)?(\[[^]/?]+\]|[^:/?\s]*)(:\d*)?(/[^?]*)?(\?.*)?")
"""SQLAlchemy's URLs of the drivers that the coordinator has. The parts are found as SQLAlchemy finds them: a password may contain `/`."""

StoreRoleArn = Annotated[str, Field(min_length=20, max_length=2048, pattern=r"^arn:[a-zA-Z0-9-]+:iam:[^:\s]*:[^:\s]*:role/[^\s:]+$")]


class ProviderRole(BaseModel):
    """A row of the table of an identity provider: its members have the roles for the jobs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: str = Field("", max_length=1000, description="a group of the provider, exactly as in the token")
    subject: str = Field("", max_length=1000, description="the claim sub of one user or program, instead of a group")
    roles: tuple[Role, ...] = Field(min_length=1)
    jobs: tuple[JobPattern, ...] = Field(("*",), min_length=1)

    @model_validator(mode="after")
    def _one_of_two(self) -> ProviderRole:
        if (self.group == "") == (self.subject == ""):
            raise ValueError("give either group or subject")
        return self


class ClientCertificate(BaseModel):
    """Who presents a client certificate with this name has the roles for the jobs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        min_length=1, max_length=1000, description="its first URI, else its first DNS name, else its common name; * is any text"
    )
    roles: tuple[Role, ...] = Field(min_length=1)
    jobs: tuple[JobPattern, ...] = Field(("*",), min_length=1)


class IdentityProvider(BaseModel):
    """An OpenID Connect provider, or a Kubernetes cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,29}$", description="the beginning of the names of its principals, as in corp:ann")
    issuer: str = Field(description="URL, exactly as in the claim iss of its tokens")
    audience: str = Field("", description="claim aud of the tokens of programs; those for client_id are accepted, too")
    client_id: str = Field("", description="client of the web pages and of `sluice login`")
    client_secret_file: Path | None = Field(None, description="file with the secret of the client, if it has one")
    scopes: str = Field("openid", description="scopes of logins, separated by spaces")
    keys_url: str = Field("", description="URL of the public keys (JWKS); default: the one that the issuer publishes")
    ca_file: Path | None = Field(
        None, description="PEM file of the authorities of the provider's certificate; default: those of the system"
    )
    bearer_token_file: Path | None = Field(None, description="file with a token for requests to keys_url, which Kubernetes needs")
    keys_kept_seconds: float = Field(86400, gt=0, le=1e7)
    name_claim: str = Field("sub", description="claim with the principal's name; users must not be able to change it")
    groups_claim: str = Field("groups", description="claim with the groups; a dot separates nested names, as in realm_access.roles")
    kubernetes: bool = Field(False, description="its tokens are those of service accounts, bound to a pod")
    roles: tuple[ProviderRole, ...] = ()

    @field_validator("issuer", "keys_url")
    @classmethod
    def _safe(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and not (parts.scheme == "https" and parts.netloc) and not (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
            raise ValueError("an https:// URL is needed, because its answers decide who may log in")
        return url

    @model_validator(mode="after")
    def _has_audience(self) -> IdentityProvider:
        if not self.audience and not self.client_id:
            raise ValueError("audience or client_id is needed: tokens for other programs must not be accepted")
        return self


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="ignore", allow_inf_nan=False)

    home: Path = Field(
        Path(".sluice"),
        validate_default=True,
        description="directory of the database, the embedded log and local state, unless set otherwise",
    )
    host: str = Field("127.0.0.1", description="address to listen on; beyond loopback requests need a token, and TLS or a proxy")
    port: int = Field(8180, ge=0, le=65535, description="port to listen on; 0: any free one")
    insecure: bool = Field(False, description="allow listening beyond loopback without tokens and TLS")
    authentication: bool | None = Field(
        None,
        description="requests need a token; otherwise all requests are allowed. Default: on beyond loopback and behind a proxy",
    )
    tls_certificate: Path | None = Field(None, description="PEM file of the certificate and its chain; read again when it changes")
    tls_key: Path | None = Field(None, description="PEM file of its private key")
    tls_client_authorities: Path | None = Field(
        None, description="PEM file of the authorities of client certificates; new ones are read when the file changes"
    )
    client_certificates: Annotated[tuple[ClientCertificate, ...], NoDecode] = Field(
        (), description="names of client certificates, with their roles: a JSON list of objects, or tables [[client_certificates]]"
    )
    behind_proxy: bool = Field(False, description="a proxy in front of the coordinator terminates TLS; requests need a token")
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto headers are used"
    )
    samza_networks: Annotated[dict[str, tuple[str, ...]], NoDecode] = Field(
        {},
        description="networks from which containers of Apache Samza, which cannot send tokens, read the job model and send heartbeats "
        'without one: a JSON object of job patterns, as {"flight-*": ["10.1.0.0/16"]}. Default: none',
    )
    metrics_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="addresses, networks and names (with * as in *.example.org) at which containers may serve their metrics, in addition "
        "to the address from which they register",
    )
    deployer_spark_settings: Annotated[tuple[str, ...], NoDecode] = Field(
        ALLOWED, description="Spark settings, with * as in spark.sql.*, that the role deployer may put into a run's config"
    )
    audit_file: Path | None = Field(
        None, description="file to which each event of the audit log is appended as a line of JSON; -: standard output. Default: none"
    )
    identity_providers: Annotated[tuple[IdentityProvider, ...], NoDecode] = Field(
        (),
        description="OpenID Connect providers and Kubernetes clusters whose tokens are accepted, with the roles of their groups: "
        "a JSON list of objects, or tables [[identity_providers]]",
    )
    public_url: str = Field(
        "",
        description="URL of the coordinator for browsers, as https://sluice.example.org; logins return to it. Default: the request's",
    )
    first_token_file: Path | None = Field(
        None, description="file for the first administrator's token; default: it is printed on standard output"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="names under which clients reach the coordinator (Host header), in addition to localhost. Default with `insecure`: any",
    )
    database_url: str = Field("", description="SQLAlchemy URL with an async driver; default: coordinator.db under home")
    log_dir: Path | None = Field(None, description="directory of the embedded log; default: log under home")
    kafka_bootstrap: str = Field(
        "", max_length=2000, description="bootstrap servers (host:port,host:port) of the Kafka cluster that is the system `kafka`"
    )
    kafka_properties: Path | None = Field(None, description="client.properties file: security.protocol, sasl.*, ssl.*")
    kafka_replication: int = Field(
        -1, ge=-1, description="replication factor of the topics that the coordinator creates; -1: the brokers' default"
    )
    groupers: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="user-defined groupers that jobs may use (module:Class or module:*)"
    )
    lease_seconds: float = Field(40, description="lease duration: how long a container may run without a successful heartbeat")
    heartbeat_seconds: float = Field(5, description="heartbeat interval")
    margin_seconds: float = Field(3, description="safety margin: a container stops this long before its lease expires")
    grace_seconds: float = Field(5, description="grace period: tasks are reassigned this long after a lease expires")
    heartbeat_max_rate: float = Field(
        2500, description="maximum heartbeats per second of all containers; in a larger fleet each sends fewer"
    )
    bare_lease_seconds: float = Field(
        160,
        description="lease of containers without an epoch, such as Apache Samza's, which send a heartbeat every 60 s and retry it for 93 s",
    )
    bare_grace_seconds: float = Field(
        120, description="grace period of containers without an epoch, which take up to two minutes to shut down"
    )
    database_outage_seconds: float = Field(
        120,
        ge=15,
        le=1e6,
        description="with PostgreSQL: how long leases are renewed while the database is unavailable; then heartbeats are answered with 503",
    )
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="maximum size of a request's body")
    max_connections: int | None = Field(
        None,
        ge=10,
        description="maximum number of connections; a fifth is reserved for heartbeats and probes. Default: from the limit of open files",
    )
    max_connections_per_peer: int | None = Field(
        None, ge=10, description="maximum number of connections from one address. Default: no limit, because fleets share addresses"
    )
    notices_wait_seconds: float = Field(30, gt=0, le=300, description="maximum duration of a long poll")
    disk_low_bytes: int = Field(
        1 << 30, ge=0, description="report a disk of the database, the embedded log or a blob store with less free space; 0: never"
    )
    disk_full_bytes: int = Field(32 << 20, ge=0, description="the coordinator is not ready if one of these disks has less free space")
    log_retention_seconds: float = Field(3600, ge=0, description="records of intermediate streams are kept at least this long")
    watermark_unread_seconds: float = Field(
        10,
        ge=0,
        le=1e9,
        description="watermarks wait for a stage that has neither a watermark nor an event-time column while it has unread records older "
        "than this",
    )
    idle_feeder_seconds: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="stop waiting for a task that has unread records or open windows and has made no progress for this long; its rows may "
        "then be dropped as late. Default: wait without limit",
    )
    blob_stores: Annotated[dict[str, str], NoDecode] = Field(
        {}, description='blob stores for state, name -> URL; default {"local": "file://HOME/blobs"}'
    )
    backup_stores: Annotated[tuple[str, ...] | None, NoDecode] = Field(None, description="blob stores that runs back up to; default: all")
    restore_from: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None, description="blob stores that runs restore from, in order of preference; default: all"
    )
    blob_store_roles: Annotated[dict[str, StoreRoleArn], NoDecode] = Field(
        {},
        description="roles (ARN) of S3 stores, by name of the store. The coordinator assumes the role at STS, and hands each job's "
        "containers short-lived credentials for the blobs of that job. A JSON object, as "
        '{"main": "arn:aws:iam::123456789012:role/sluice"}. Default: containers have credentials of their own',
    )
    blob_credentials_seconds: int = Field(
        3600, ge=900, le=43200, description="life of these credentials; at most the maximum session duration of the role"
    )
    sts_endpoint: str = Field(
        "", max_length=2000, description="URL of STS for blob_store_roles. Default: the endpoint of the store's URL, otherwise Amazon's"
    )
    keep_last: int = Field(10, ge=1, le=100_000, description="number of snapshots to keep of each stage of a task")
    keep_hourly: int = Field(0, ge=0, le=100_000, description="additionally keep the newest snapshot of each of the last N hours")
    keep_daily: int = Field(0, ge=0, le=100_000, description="additionally keep the newest snapshot of each of the last N days")
    retire_after_seconds: float = Field(
        7 * 86400, ge=0, description="keep snapshots of a stage this long after the job has removed the stage"
    )
    keep_incarnations: int = Field(
        100, ge=30, le=1_000_000, description="number of containers to keep in the history of each slot of a run"
    )
    keep_history_seconds: float = Field(
        30 * 86400, ge=86400, le=1e9, description="keep runs, drains, notices and versions of job models this long after their end"
    )
    gc_every_seconds: float = Field(3600, gt=0, description="interval of garbage collection in the blob stores")
    gc_grace_seconds: float = Field(
        86400,
        ge=60,
        description="keep blobs that no snapshot refers to for this long. Must exceed the longest commit, which is twice the sum of the "
        "containers' commit_max_delay_seconds and commit_timeout_seconds, and one second; otherwise containers refuse to start",
    )
    gc_max_deletes_per_second: float = Field(1000, gt=0, description="maximum rate of garbage collection")
    blob_ttl_seconds: float = Field(30 * 86400, gt=0, description="time to live that containers set on uploaded blobs; used for the alert")

    drain_soft_seconds: float = Field(60, gt=0, le=1e9, description="after this long, report which tasks hold up a drain")
    drain_hard_seconds: float = Field(600, gt=0, le=1e9, description="after this long, a drain fails")
    drain_stopping_seconds: float = Field(60, gt=0, le=1e9, description="budget of a drain's phase STOPPING: finish the running batches")
    drain_flushing_seconds: float = Field(300, gt=0, le=1e9, description="budget of a drain's phase FLUSHING")
    drain_committing_seconds: float = Field(120, gt=0, le=1e9, description="budget of a drain's phase COMMITTING: the last backup")

    partition_monitor_seconds: float = Field(60, gt=0, le=1e6, description="interval at which the partition counts of inputs are checked")
    failover_after_seconds: float = Field(
        300, ge=0, le=1e9, description="reassign the tasks of a slot that has had no container for this long; 0: never"
    )
    failover_give_back: bool = Field(True, description="give a slot its tasks back when it has a container again")
    crash_loop_backoff_seconds: float = Field(
        5,
        ge=0,
        le=300,
        description="first delay before a slot whose containers keep failing may register again; doubled each time; 0: none",
    )

    @field_validator(
        "allowed_hosts",
        "trusted_proxies",
        "identity_providers",
        "client_certificates",
        "metrics_hosts",
        "deployer_spark_settings",
        "groupers",
        "backup_stores",
        "restore_from",
        mode="before",
    )
    @classmethod
    def _listed(cls, given: object) -> object:
        """Environment variables contain the list as JSON."""
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given)
        except ValueError as error:
            raise ValueError('a JSON list is needed, as in ["module:Class"] or ["local"]') from error

    @field_validator("blob_stores", "blob_store_roles", "samza_networks", mode="before")
    @classmethod
    def _named(cls, given: object, info: ValidationInfo) -> object:
        """Environment variables contain the object as JSON."""
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given)
        except ValueError as error:
            form = {
                "blob_stores": '{"local": "file:///var/lib/sluice/blobs"}',
                "blob_store_roles": '{"main": "arn:aws:iam::123456789012:role/sluice"}',
                "samza_networks": '{"flight-*": ["10.1.0.0/16"]}',
            }
            raise ValueError(f"a JSON object is needed, as in {form[str(info.field_name)]}") from error

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
                raise ValueError(f"no blob store {name!r} is configured; configured are {', '.join(self.blob_places)}")
        for name in self.blob_store_roles:
            if not self.blob_places.get(name, "").startswith("s3://"):
                raise ValueError(f"blob_store_roles has a role for {name!r}, which is not an s3:// store of blob_stores")
        return self

    @field_validator("database_url")
    @classmethod
    def _database(cls, url: str) -> str:
        if not url:
            return url
        if not _SQLITE.fullmatch(url) and not _POSTGRESQL.fullmatch(url):
            raise ValueError("write sqlite+aiosqlite:///FILE or postgresql+asyncpg://USER@HOST/DATABASE")
        if re.search(r"[?&]sslmode=", url):
            raise ValueError("asyncpg has the option ssl, as in ?ssl=verify-full, and not sslmode")
        return url

    @field_validator("kafka_bootstrap")
    @classmethod
    def _servers(cls, given: str) -> str:
        return checked_bootstrap(given)

    @field_validator("sts_endpoint")
    @classmethod
    def _endpoint(cls, url: str) -> str:
        if url and not re.fullmatch(r"https?://[^@/?#\s]+/?", url):
            raise ValueError("an endpoint is written https://host or http://host:port, without credentials")
        return url

    @field_validator("identity_providers")
    @classmethod
    def _distinct(cls, providers: tuple[IdentityProvider, ...]) -> tuple[IdentityProvider, ...]:
        for field in ("name", "issuer"):
            if len({getattr(each, field) for each in providers}) != len(providers):
                raise ValueError(f"two identity providers have the same {field}")
        return providers

    @field_validator("groupers")
    @classmethod
    def _allowances(cls, groupers: tuple[str, ...]) -> tuple[str, ...]:
        for each in groupers:
            if not is_allowance(each):
                raise ValueError(f"{each!r} is not a grouper: write module:Class, or module:* for all classes of a module")
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

    @field_validator("home", "log_dir")
    @classmethod
    def _utf8(cls, given: Path | None) -> Path | None:
        return None if given is None else checked_path(given)

    @property
    def authenticates(self) -> bool:
        """Whether requests need a token."""
        if self.authentication is not None:
            return self.authentication
        return self.behind_proxy or not (self.insecure or _is_loopback(self.host))

    @property
    def host_names(self) -> tuple[str, ...] | None:
        """The names that the Host header may have; None: any."""
        if self.insecure and not self.allowed_hosts:
            return None
        return self.allowed_hosts if parse_address(self.host) is not None else (*self.allowed_hosts, self.host)

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite+aiosqlite:///{(self.home / 'coordinator.db').absolute()}"

    @property
    def database_shown(self) -> str:
        """The URL without its password, for logs and messages."""
        return without_credentials(self.database)

    @property
    def database_outage(self) -> timedelta | None:
        """The setting; None with SQLite, whose file is locked while the coordinator runs."""
        return None if self.database.startswith("sqlite") else timedelta(seconds=self.database_outage_seconds)

    @property
    def log_directory(self) -> Path:
        return (self.log_dir or self.home / "log").absolute()

    @property
    def blob_places(self) -> dict[str, str]:
        """Name -> URL."""
        return self.blob_stores or {"local": (self.home / "blobs").absolute().as_uri()}

    @property
    def disks(self) -> dict[str, Path]:
        """Paths on the disks of this machine that the coordinator writes to, by display name. Database servers and buckets are not
        included."""
        found = {"log": self.log_directory}
        if self.database.startswith("sqlite") and (file := self.database.partition("///")[2]):
            found["database"] = Path(file).parent
        for name, url in self.blob_places.items():
            if url.startswith("file:"):
                found[f"blob store {name}"] = Path(unquote(urlsplit(url).path))
        return found

    @property
    def fail_over(self) -> FailOver:
        """The default for jobs whose configuration does not set it."""
        return FailOver(timedelta(seconds=self.failover_after_seconds) or None, self.failover_give_back)

    @property
    def gc_grace(self) -> timedelta:
        return timedelta(seconds=self.gc_grace_seconds)

    @property
    def history_policy(self) -> HistoryPolicy:
        return HistoryPolicy(self.keep_incarnations, timedelta(seconds=self.keep_history_seconds))

    @property
    def lease_policy(self) -> LeasePolicy:
        """Raises BadSettings with the inequality that does not hold."""
        return LeasePolicy(
            lease=timedelta(seconds=self.lease_seconds),
            interval=timedelta(seconds=self.heartbeat_seconds),
            margin=timedelta(seconds=self.margin_seconds),
            grace=timedelta(seconds=self.grace_seconds),
            max_rate=self.heartbeat_max_rate,
            bare_lease=timedelta(seconds=self.bare_lease_seconds),
            bare_grace=timedelta(seconds=self.bare_grace_seconds),
            outage=self.database_outage,
        )


def read_settings(**flags: object) -> Settings:
    """Settings from all sources, checked against each other. `flags`: options of the command line; None means not given. Raises
    BadSettings."""
    file = os.environ.get("SLUICE_CONFIG")
    if file and not Path(file).is_file():
        raise BadSettings(f"SLUICE_CONFIG: {file} is not a file")
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]
        _ = settings.lease_policy
    except (ValidationError, ValueError, OverflowError, BadName) as error:
        raise BadSettings(_message(error)) from error
    _check_exposure(settings)
    return settings


def _check_exposure(settings: Settings) -> None:
    """Raises BadSettings if a network could send requests without a token, or read tokens."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise BadSettings("tls_certificate and tls_key are needed together")
    if settings.tls_client_authorities is not None and settings.tls_certificate is None:
        raise BadSettings("tls_client_authorities needs tls_certificate and tls_key")
    if settings.client_certificates and settings.tls_client_authorities is None:
        raise BadSettings("client_certificates needs tls_client_authorities, the authorities that sign them")
    parse_networks(settings.trusted_proxies)
    parse_scrape_hosts(settings.metrics_hosts)
    parse_open_networks(settings.samza_networks)
    if settings.behind_proxy and not settings.trusted_proxies:
        raise BadSettings("behind_proxy needs trusted_proxies, a JSON list of the addresses or networks of the proxies")
    if settings.behind_proxy and not settings.authenticates:
        raise BadSettings(
            "behind_proxy always needs authentication, because requests from the network reach the coordinator through the proxy"
        )
    if settings.insecure or _is_loopback(settings.host):
        return
    if not settings.authenticates:
        raise BadSettings(f"host {settings.host} is not loopback, so authentication is needed; --insecure turns it off")
    if settings.tls_certificate is None and not settings.behind_proxy:
        raise BadSettings(
            f"host {settings.host} is not loopback, so tokens need TLS: give --tls-certificate and --tls-key, or --behind-proxy with the "
            "setting trusted_proxies. Otherwise use 127.0.0.1. --insecure turns tokens and TLS off"
        )


def _message(error: Exception) -> str:
    """The text of an error. The input of an error about several settings is omitted, because it contains all settings with the secret
    ones. So is an input that may have a password, and is not a URL in which the password would be found."""
    if not isinstance(error, ValidationError):
        return str(error)
    shown = []
    for each in error.errors():
        where = ".".join(map(str, each["loc"]))
        given = f" (got {each['input']!r})" if not (isinstance(each["input"], str) and _is_half_a_url(each["input"])) else ""
        shown.append(without_credentials(f"{where}: {each['msg']}{given}") if where else each["msg"])
    return "; ".join(shown)


def _is_half_a_url(text: str) -> bool:
    return "@" in text and "://" not in text


def _is_loopback(host: str) -> bool:
    address = parse_address(host)
    return host == LOCALHOST if address is None else address.is_loopback
