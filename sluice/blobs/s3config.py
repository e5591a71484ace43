"""Where an S3 store is, who asks, and who must act on what it answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.core.errors import BadName, BadSettings, BlobStoreUnusable, BlobUnavailable, SluiceError
from sluice.core.snapshot import checked_blob_id

_ELSEWHERE = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
"""Other ways to credentials that both clients find in the environment by themselves."""

_A_PERSON = {
    "AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId",
    "InvalidBucketName", "InvalidToken", "MethodNotAllowed", "NoSuchBucket", "PermanentRedirect", "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
}  # fmt: skip
"""Codes of S3 after which a person must act; after all others it may pass, among them 400 BadDigest and 400 RequestTimeout."""

_CODE = re.compile(r"<Code>(\w+)</Code>")


@dataclass(frozen=True, slots=True)
class S3Place:
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
                raise BadSettings(f"the prefix {self.prefix[:80]!r} of an S3 store has characters that Sluice does not accept") from error

    def __str__(self) -> str:
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}/{self.prefix}{at}"

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name


@dataclass(frozen=True, slots=True)
class Access:
    """Who asks, and where what the place does not say is from. Without `key` and `secret` the clients find other credentials in the
    environment. `authorities` is a file of certificates that the server's may be signed with, as PEM."""

    region: str
    endpoint: str | None
    key: str | None
    secret: str | None
    token: str | None
    authorities: Path | None


def access_to(place: S3Place, environment: Mapping[str, str]) -> Access:
    """Raises BadSettings if there are no credentials: the network is not searched for any."""
    region = place.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = place.endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None
    authorities = Path(environment["AWS_CA_BUNDLE"]) if environment.get("AWS_CA_BUNDLE") else None
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not (key and secret):
        if not any(environment.get(name) for name in _ELSEWHERE):
            raise BadSettings(f"there are no credentials for {place}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")
        return Access(region, endpoint, None, None, None, authorities)
    return Access(region, endpoint, key, secret, environment.get("AWS_SESSION_TOKEN"), authorities)


def code_of(said: str) -> str:
    """The code in S3's answer as XML; "" where there is none."""
    found = _CODE.search(said)
    return found[1] if found else ""


def trouble(code: str, refused: bool, what: str, said: str) -> SluiceError:
    """The error for what S3 answered: its code, whether the client took it for a refusal, and its words."""
    if refused or code in _A_PERSON:
        return BlobStoreUnusable(f"{what}: {said}")
    return BlobUnavailable(f"{what}: {said}")
