"""Short-lived credentials of blob stores, which the coordinator hands to the containers of a job."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from coordinator.blobpool import BlobStores
from sluice.blobs.handed import HandedCredentials, RenewedCredentials
from sluice.blobs.sts import StoreRole, assume
from sluice.clock import Clock
from sluice.core.errors import NoStoreRole, UnknownBlobStore
from sluice.core.ids import JobName
from sluice.core.snapshots.snapshot import BlobStoreName

log = logging.getLogger(__name__)

Assume = Callable[[StoreRole, JobName], Awaitable[HandedCredentials]]


class BlobCredentials:
    """Credentials by job and store. The containers of a job share them until half of their life has passed. They are in memory only."""

    def __init__(
        self, blob_stores: BlobStores, roles: Mapping[BlobStoreName, StoreRole], clock: Clock, assume_role: Assume = assume
    ) -> None:
        self._blob_stores = blob_stores
        self._roles = roles
        self._clock = clock
        self._assume = assume_role
        self._issued: dict[tuple[JobName, BlobStoreName], RenewedCredentials] = {}

    async def of(self, job: JobName, store: BlobStoreName) -> HandedCredentials:
        """Credentials with which the containers of the job reach its blobs in the store. Raises UnknownBlobStore, NoStoreRole,
        StoreCredentialsUnavailable, and BlobStoreUnusable if the role cannot be assumed."""
        if store not in self._blob_stores.places:
            configured = ", ".join(self._blob_stores.places) or "none"
            raise UnknownBlobStore(f"no blob store {store!r} is configured (configured: {configured}): add it to blob_stores")
        role = self._roles.get(store)
        if role is None:
            raise NoStoreRole(
                f"blob store {store} has no role for containers: they use credentials of their own, or set its role in blob_store_roles"
            )
        key = (job, store)
        if key not in self._issued:
            self._forget_ended()
            self._issued[key] = RenewedCredentials(partial(self._new, role, job, store), self._clock, f"blob store {store} for job {job}")
        source = self._issued[key]
        found = await source.renewed()
        return HandedCredentials(found.key, found.secret, found.token, source.left, found.expires_at)

    async def _new(self, role: StoreRole, job: JobName, store: BlobStoreName) -> HandedCredentials:
        found = await self._assume(role, job)
        log.info("containers of job %s get credentials of blob store %s until %s", job, store, f"{found.expires_at:%Y-%m-%dT%H:%M:%SZ}")
        return found

    def _forget_ended(self) -> None:
        """Drop the credentials of jobs that have asked for none for so long that the last ones have expired."""
        for key in [key for key, each in self._issued.items() if not each.left and not each.busy]:
            del self._issued[key]

    async def close(self) -> None:
        for each in self._issued.values():
            await each.close()
