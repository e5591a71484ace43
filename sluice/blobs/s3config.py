"""Location, credentials and error codes of S3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sluice.core.errors import BadName, BadSettings, BlobStoreUnusable, BlobUnavailable, SluiceError
from sluice.core.snapshots.snapshot import checked_blob_id

_ELSEWHERE = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
"""Other sources of credentials, which both clients find in the environment."""

_PERMANENT = {
    "AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId",
    "InvalidBucketName", "InvalidToken", "MethodNotAllowed", "NoSuchBucket", "PermanentRedirect", "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
}  # fmt: skip
"""Error codes of S3 that an operator must act on. All others may be temporary, including 400 BadDigest and 400 RequestTimeout."""

_FULL = {"QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"}
"""Error codes of compatible servers (Ceph, MinIO) whose disks are full, or whose quota is used up."""

_CODE = re.compile(r"<Code>(\w+)</Code>")


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and a prefix in it without '/' at its ends, which may be ""; `endpoint` is None at Amazon. Raises BadSettings."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None

    def __post_init__(self) -> None:
        if self.endpoint is not None and not re.match(r"https?://[^@/?#]+/?$", self.endpoint):
            raise BadSettings("the endpoint of an S3 store is written http://host:port or https://host, without credentials")
        if self.prefix:
            try:
                checked_blob_id(self.prefix)
            except BadName as error:
                raise BadSettings(f"the prefix {self.prefix[:80]!r} of an S3 store has unsupported characters") from error

    def __str__(self) -> str:
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}/{self.prefix}{at}"

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Credentials, region and endpoint. Without `key` and `secret` the clients find other credentials in the environment. `authorities`: a
    PEM file of accepted certificate authorities."""

    region: str
    endpoint: str | None
    key: str | None
    secret: str | None = field(repr=False)
    token: str | None = field(repr=False)
    authorities: Path | None


def credentials_for(location: S3Location, environment: Mapping[str, str], *, handed: bool = False) -> S3Credentials:
    """The credentials in the environment. Raises BadSettings if there are none. They are not looked up over the network. `handed`: none are
    needed, because the coordinator hands them out."""
    region = location.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = location.endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None
    authorities = Path(environment["AWS_CA_BUNDLE"]) if environment.get("AWS_CA_BUNDLE") else None
    if handed:
        return S3Credentials(region, endpoint, None, None, None, authorities)
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not (key and secret):
        if not any(environment.get(name) for name in _ELSEWHERE):
            raise BadSettings(f"no credentials for {location}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")
        return S3Credentials(region, endpoint, None, None, None, authorities)
    return S3Credentials(region, endpoint, key, secret, environment.get("AWS_SESSION_TOKEN"), authorities)


def code_of(text: str) -> str:
    """The error code in S3's XML answer; "" if there is none."""
    found = _CODE.search(text)
    return found[1] if found else ""


def is_full(code: str) -> bool:
    """Whether a server with this error code has no room."""
    return code in _FULL


def error_for(code: str, denied: bool, what: str, text: str) -> SluiceError:
    """The port's error for an answer of S3. `denied`: the client recognized it as a denial of access, as which Ceph answers when a quota is
    used up."""
    if code not in _FULL and (denied or code in _PERMANENT):
        return BlobStoreUnusable(f"{what}: {text}")
    return BlobUnavailable(f"{what}: {text}")
