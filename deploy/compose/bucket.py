"""Creates the bucket of secure.yaml, unless there is one, and sets its policy: bucket.py POLICIES ENDPOINT JOB=USER...

POLICIES is deploy/s3. The bucket is `sluice`, and the blobs are below `state/`. The credentials are in the environment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import boto3

BUCKET, PREFIX = "sluice", "state"


def statements(file: Path, number: int, **names: str) -> list[dict[str, Any]]:
    """The statements of a policy with its placeholders replaced. Their ids end with the number, because they are unique in a policy."""
    text = file.read_text()
    for placeholder, value in {"BUCKET": BUCKET, "PREFIX": PREFIX, **names}.items():
        text = text.replace(placeholder, value)
    return [each | {"Sid": f"{each['Sid']}{number}"} for each in json.loads(text)["Statement"]]


def main(policies: Path, endpoint: str, *users: str) -> None:
    allowed = statements(policies / "coordinator.json", 0, COORDINATOR="coordinator")
    for number, (job, user) in enumerate((each.split("=", 1) for each in users), 1):
        allowed += statements(policies / "containers.json", number, CONTAINERS=user, JOB=job)
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    if BUCKET not in [each["Name"] for each in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket=BUCKET)
    s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": allowed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
