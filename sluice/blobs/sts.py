"""Requests for short-lived credentials of a role, to STS (Security Token Service) of Amazon or of a compatible server."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import cache
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sluice.blobs.handed import HandedCredentials
from sluice.blobs.s3config import S3Location, credentials_for
from sluice.core.errors import BlobStoreUnusable, StoreCredentialsUnavailable
from sluice.core.ids import JobName

WITHIN = timedelta(seconds=8)
"""Time limit of a request. Shorter than that of containers for the answer of the coordinator, which needs it."""

_LATER = {"IDPCommunicationError", "RequestTimeout", "RequestTimeTooSkewed", "ServiceUnavailable", "Throttling", "ThrottlingException"}
"""Error codes with a status below 500 after which a later request may succeed."""

_READ_AND_WRITE = (
    "s3:GetObject",
    "s3:PutObject",
    "s3:AbortMultipartUpload",
    "s3:GetObjectTagging",
    "s3:PutObjectTagging",
    "s3:DeleteObjectTagging",
)


@dataclass(frozen=True, slots=True)
class StoreRole:
    """The role (ARN) that containers act as in the store at `location`. `endpoint`: the URL of STS; None at Amazon. `life`: of the
    credentials."""

    arn: str
    location: S3Location
    endpoint: str | None
    life: timedelta


def session_policy(role: StoreRole, job: JobName) -> Mapping[str, Any]:
    """What the containers of the job may do: the statements of deploy/s3/containers.json. STS limits the rights of the role to them."""
    bucket = f"arn:{_partition(role.arn)}:s3:::{role.location.bucket}"
    blobs = role.location.key(f"blobs/jobs/{job}/*")
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": "BlobsOfTheJob", "Effect": "Allow", "Action": list(_READ_AND_WRITE), "Resource": f"{bucket}/{blobs}"},
            {"Sid": "Marker", "Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{bucket}/{role.location.key('sluice.json')}"},
            {
                "Sid": "ListsOfTheJob",
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": bucket,
                "Condition": {"StringLike": {"s3:prefix": [blobs]}},
            },
        ],
    }


def session_name(job: JobName) -> str:
    """The name of the session, which the store's own logs show. It has at most 64 characters."""
    return f"sluice-{job}"[:64]


async def assume(role: StoreRole, job: JobName) -> HandedCredentials:
    """Credentials of the role for the containers of the job. The request is signed with the credentials in this process's environment.
    Raises StoreCredentialsUnavailable, BlobStoreUnusable if STS refuses the request, and BadSettings if the environment has none."""
    policy = json.dumps(session_policy(role, job), separators=(",", ":"))
    what = f"credentials of the role {role.arn} for {role.location}"
    try:
        async with asyncio.timeout(WITHIN.total_seconds()), _client(role) as client:
            answer = await client.assume_role(
                RoleArn=role.arn, RoleSessionName=session_name(job), Policy=policy, DurationSeconds=int(role.life.total_seconds())
            )
        made = answer["Credentials"]
        return HandedCredentials(
            made["AccessKeyId"], made["SecretAccessKey"], made["SessionToken"], role.life, made["Expiration"].astimezone(UTC)
        )
    except ClientError as error:
        code, status = (
            error.response.get("Error", {}).get("Code", ""),
            error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500),
        )
        if status >= 500 or status == 429 or code in _LATER:
            raise StoreCredentialsUnavailable(f"{what}: {error}") from error
        raise BlobStoreUnusable(f"{what}: {error}") from error
    except (BotoCoreError, OSError, TimeoutError) as error:
        raise StoreCredentialsUnavailable(f"{what}: {error or f'no answer within {WITHIN.total_seconds():g} s'}") from error
    except (KeyError, TypeError, AttributeError) as error:  # the answer is not quoted: it may have a part of the credentials
        raise StoreCredentialsUnavailable(f"{what}: the answer is not that of an STS") from error


def _client(role: StoreRole) -> Any:
    seconds = WITHIN.total_seconds()
    config = Config(connect_timeout=seconds / 2, read_timeout=seconds, retries={"total_max_attempts": 1})
    access = credentials_for(role.location, os.environ)
    return _session().client(
        "sts",
        region_name=access.region,
        endpoint_url=role.endpoint,
        aws_access_key_id=access.key,
        aws_secret_access_key=access.secret,
        aws_session_token=access.token,
        config=config,
    )


@cache
def _session() -> Any:
    """Shared, because it caches the service description of STS, which is slow to load."""
    import aioboto3

    return aioboto3.Session()


def _partition(arn: str) -> str:
    """The partition of Amazon that the role is in. Compatible servers expect `aws` in policies, whatever their roles are called."""
    found = re.match(r"arn:(aws[a-z-]*):", arn)
    return found[1] if found else "aws"
