"""Credentials of blob stores from the coordinator."""

from __future__ import annotations

from datetime import timedelta

from sluice.blobs.handed import HandedCredentials, RenewedCredentials
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.errors import BlobStoreUnusable, BlobUnavailable, ClientError, SluiceError, Unavailable
from sluice.core.ids import RunId
from sluice.core.snapshots.snapshot import BlobStoreName
from sluice.wire import agents as wire_agents


async def handed_credentials(coordinator: AgentClient, run_id: RunId, name: BlobStoreName, clock: Clock) -> RenewedCredentials | None:
    """The credentials that the coordinator hands out for the blob store. None if it hands out none: this process then uses its own. Raises
    BlobUnavailable if the coordinator or its STS is not available, BlobStoreUnusable if the coordinator cannot assume the role, and
    LeaseLost."""
    try:
        offered = await coordinator.blob_credentials(run_id, name)
    except Unavailable as error:
        raise BlobUnavailable(f"credentials of blob store {name}: {error}") from error
    except ClientError as error:
        raise BlobStoreUnusable(f"credentials of blob store {name}: {error}") from error
    if offered is None:
        return None
    first: wire_agents.BlobCredentialsReply | None = offered

    async def fetch() -> HandedCredentials:
        """Every failure counts as that of an unavailable store, so that requests are repeated."""
        nonlocal first
        found, first = first, None
        try:
            found = found or await coordinator.blob_credentials(run_id, name)
        except SluiceError as error:
            raise BlobUnavailable(f"credentials of blob store {name}: {error}") from error
        if found is None:
            raise BlobUnavailable(f"credentials of blob store {name}: the coordinator has stopped handing them out")
        left = timedelta(seconds=found.seconds_left)
        return HandedCredentials(found.access_key_id, found.secret_access_key, found.session_token, left, found.expires_at)

    handed = RenewedCredentials(fetch, clock, f"blob store {name}")
    await handed.current()
    return handed
