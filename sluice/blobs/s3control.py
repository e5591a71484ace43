"""Infrequent requests to S3, with aioboto3: tags, lifecycle rules, and deletion of many objects in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sluice.blobs.handed import RenewedCredentials
from sluice.blobs.s3config import S3Credentials, S3Location, error_for
from sluice.core.errors import BlobUnavailable

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import LifecycleRuleOutputTypeDef, LifecycleRuleTypeDef, LifecycleRuleUnionTypeDef


TTL_TAG = "sluice-ttl-days"
TTL_DAYS = (1, 2, 7, 30, 90, 365)
"""There is a lifecycle rule for each of these numbers of days. A TTL is rounded up to the next one. A TTL of more
than a year is ignored."""

_TIMEOUT = 60


class ObjectNotFound(Exception):
    """The object does not exist."""


class S3Control:
    def __init__(self, location: S3Location, access: S3Credentials, handed: RenewedCredentials | None = None) -> None:
        self._handed = handed
        self._location = location
        self._access = access
        self._stack = AsyncExitStack()
        self._client: S3Client | None = None
        self._opening = asyncio.Lock()

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete up to 1,000 objects. Missing ones are ignored."""
        client = await self._connected()
        with self._translated_errors("delete"):
            answer = await client.delete_objects(
                Bucket=self._location.bucket, Delete={"Quiet": True, "Objects": [{"Key": key} for key in keys]}
            )
        for error in answer.get("Errors", []):
            if error.get("Code") != "NoSuchKey":
                raise error_for(error.get("Code", ""), False, f"delete of {error.get('Key')}", error.get("Message", "no reason"))

    async def remove_ttl(self, key: str) -> None:
        """Raises ObjectNotFound."""
        client = await self._connected()
        with self._translated_errors(f"remove_ttl of {key}"):
            await client.delete_object_tagging(Bucket=self._location.bucket, Key=key)

    async def ttl_days(self, key: str) -> int | None:
        """The TTL of an object, in days; None if it has none. Raises ObjectNotFound."""
        client = await self._connected()
        with self._translated_errors(f"tags of {key}"):
            answer = await client.get_object_tagging(Bucket=self._location.bucket, Key=key)
        days = [tag["Value"] for tag in answer["TagSet"] if tag["Key"] == TTL_TAG]
        return int(days[0]) if days and days[0].isdigit() else None

    async def set_lifecycle(self) -> bool:
        """Set the lifecycle rules that delete blobs with a TTL. Other rules are kept. Returns false if the server does not support or allow
        this."""
        client = await self._connected()
        try:
            with self._client_errors("lifecycle"):
                found = await self._rules(client)
                others = [rule for rule in found if rule.get("ID") not in self._our_ids()]
                if len(found) - len(others) < len(TTL_DAYS):
                    rules: list[LifecycleRuleUnionTypeDef] = [*others, *map(self._rule, TTL_DAYS)]
                    await client.put_bucket_lifecycle_configuration(Bucket=self._location.bucket, LifecycleConfiguration={"Rules": rules})
        except ClientError:
            return False
        return True

    async def _rules(self, client: S3Client) -> list[LifecycleRuleOutputTypeDef]:
        try:
            return (await client.get_bucket_lifecycle_configuration(Bucket=self._location.bucket)).get("Rules", [])
        except ClientError as error:
            if _code(error) == "NoSuchLifecycleConfiguration":
                return []
            raise

    def _our_ids(self) -> list[str]:
        return [self._rule_id(days) for days in TTL_DAYS]

    def _rule_id(self, days: int) -> str:
        return f"{self._location.key('sluice')}-ttl-{days}"

    def _rule(self, days: int) -> LifecycleRuleTypeDef:
        return {
            "ID": self._rule_id(days),
            "Status": "Enabled",
            "Filter": {"And": {"Prefix": self._location.key(""), "Tags": [{"Key": TTL_TAG, "Value": str(days)}]}},
            "Expiration": {"Days": days},
        }

    async def close(self) -> None:
        self._client = None
        await self._stack.aclose()

    async def _connected(self) -> S3Client:
        if self._client is not None:
            return self._client
        async with self._opening:
            if self._client is None:
                self._client = await self._connect()
        return self._client

    async def _connect(self) -> S3Client:
        config = Config(
            connect_timeout=5,
            read_timeout=_TIMEOUT,
            retries={"total_max_attempts": 1},
            max_pool_connections=32,
            request_checksum_calculation="when_required",
            s3={"addressing_style": "path" if self._access.endpoint else "auto"},
        )
        opened: S3Client = await self._stack.enter_async_context(
            (_session() if self._handed is None else _session_with(self._handed)).client(
                "s3",
                region_name=self._access.region,
                endpoint_url=self._access.endpoint,
                aws_access_key_id=self._access.key,
                aws_secret_access_key=self._access.secret,
                aws_session_token=self._access.token,
                config=config,
            )
        )
        return opened

    @contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        try:
            with self._client_errors(what):
                yield
        except ClientError as error:
            if _code(error) in ("NoSuchKey", "404"):
                raise ObjectNotFound(what) from error
            if self._handed is not None:
                check_handed(self._handed, _code(error), f"{what} in {self._location}", str(error))
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            raise error_for(_code(error), status in (401, 403), f"{what} in {self._location}", str(error)) from error

    @contextmanager
    def _client_errors(self, what: str) -> Iterator[None]:
        """Raises BlobUnavailable, or ClientError if S3 answered with an error."""
        try:
            yield
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) >= 500 and _code(error) != "NotImplemented":
                raise BlobUnavailable(f"{what} in {self._location}: {error}") from error
            raise
        except (BotoCoreError, OSError, TimeoutError) as error:
            raise BlobUnavailable(f"{what} in {self._location}: {error}") from error


@cache
def _session() -> Any:
    """Shared, because it caches the service description of S3, which is slow to load."""
    import aioboto3

    return aioboto3.Session()


def check_handed(handed: RenewedCredentials, code: str, what: str, text: str) -> None:
    """Raises BlobUnavailable if a request failed because the credentials have expired, or because there are none: later ones may have new
    credentials."""
    if code == "ExpiredToken":
        handed.reject()
    if not handed.left:
        raise BlobUnavailable(f"{what}: no valid credentials: {text}")


def _session_with(handed: RenewedCredentials) -> Any:
    """A session that gets the credentials for each request."""
    import aioboto3
    from aiobotocore.credentials import AioCredentials
    from aiobotocore.session import AioSession
    from botocore.credentials import ReadOnlyCredentials

    class Handed(AioCredentials):
        async def get_frozen_credentials(self) -> ReadOnlyCredentials:  # type: ignore[override]  # the types are botocore's
            found = await handed.current()
            return ReadOnlyCredentials(found.key, found.secret, found.token)

    class Resolver:
        async def load_credentials(self) -> AioCredentials:
            return Handed("handed", "handed", method="sluice")  # only `get_frozen_credentials` is used

    core = AioSession()
    core.register_component("credential_provider", Resolver())
    return aioboto3.Session(botocore_session=core)


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")
