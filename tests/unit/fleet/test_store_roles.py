"""The settings of roles of blob stores."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coordinator.app import store_roles
from coordinator.settings import read_settings
from sluice.core.errors import BadSettings

ARN = "arn:aws:iam::123456789012:role/teams/sluice"
S3 = {"local": "file:///var/blobs", "main": "s3://states/prod?endpoint=http://10.0.0.1:9000", "far": "s3://states?region=eu-central-1"}


def test_by_default_no_store_has_a_role(tmp_path: Path) -> None:
    assert store_roles(read_settings(home=tmp_path, blob_stores=S3)) == {}


def test_sts_is_at_the_endpoint_of_the_store_unless_the_setting_names_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_BLOB_STORE_ROLES", f'{{"main": "{ARN}", "far": "{ARN}"}}')
    found = store_roles(read_settings(home=tmp_path, blob_stores=S3))
    assert {name: (role.arn, role.endpoint, role.life) for name, role in found.items()} == {
        "main": (ARN, "http://10.0.0.1:9000", timedelta(hours=1)),
        "far": (ARN, None, timedelta(hours=1)),
    }
    named = store_roles(read_settings(home=tmp_path, blob_stores=S3, sts_endpoint="https://sts.example.org", blob_credentials_seconds=900))
    assert {(role.endpoint, role.life) for role in named.values()} == {("https://sts.example.org", timedelta(minutes=15))}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"blob_store_roles": {"other": ARN}}, "'other', which is not an s3:// store"),
        ({"blob_store_roles": {"local": ARN}}, "'local', which is not an s3:// store"),
        ({"blob_store_roles": {"main": "sluice"}}, "blob_store_roles.main"),
        ({"blob_store_roles": {"main": "arn:aws:iam::123456789012:user/sluice"}}, "blob_store_roles.main"),
        ({"blob_store_roles": "sluice"}, "a JSON object is needed"),
        ({"blob_credentials_seconds": 60}, "blob_credentials_seconds"),
        ({"sts_endpoint": "sts.example.org"}, "an endpoint is written https://host"),
        ({"sts_endpoint": "https://user:top-secret@sts.example.org"}, "without credentials"),
    ],
)
def test_a_role_that_cannot_be_right_is_refused(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadSettings) as refused:
        read_settings(home=tmp_path, blob_stores=S3, **settings)
    assert why in str(refused.value)
    assert "top-secret" not in str(refused.value)
