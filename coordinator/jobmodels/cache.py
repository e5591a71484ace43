"""The current job models in memory: decoded, and encoded as `GET /jobModel` answers them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store
from sluice.core.errors import ClientError, NoJobModel, UnknownJob
from sluice.core.ids import JobName, ProcessorId, RunId
from sluice.core.jobmodels.model import JobModel
from sluice.wire import body as wire_body
from sluice.wire import samza as wire_samza


@dataclass(frozen=True, slots=True)
class Served:
    """What `GET /jobModel` answers for a job: bytes and headers, encoded once per version. `unchanged_lines`: the headers of a 304 as
    lines."""

    model: JobModel
    body: bytes
    etag: bytes
    unchanged_headers: wire_body.HeaderList
    unchanged_lines: bytes

    def of_slot(self, processor_id: ProcessorId) -> Served:
        """The answer for one slot: the model without the other containers, because the slot's container needs no more."""
        containers = self.model.containers
        own = {processor_id: containers[processor_id]} if processor_id in containers else {}
        part = replace(self.model, containers=own)
        etag = self.etag[:-1] + f'-{part.content_hash()[:16]}"'.encode()
        headers = [(name, etag if name == b"etag" else value) for name, value in self.unchanged_headers]
        return Served(part, wire_samza.job_model_bytes(part), etag, headers, wire_body.header_lines(headers))

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.unchanged_headers}


class JobModels:
    """The current models of all jobs as they are served, and decoded models by version."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.answered_unchanged = 0
        """Counted by `coordinator.api.fastpath`."""
        self._served: dict[str, Served] = {}
        self._decoded: dict[tuple[JobName, int], JobModel] = {}

    async def recover(self) -> None:
        """Replace the cache by what the database has. Called at the start, and when memory may differ from the database."""
        self._decoded.clear()
        async with self._store.read() as tx:
            jobs = await tx.runs.jobs()
            for removed in self._served.keys() - {each.job for each in jobs}:
                del self._served[removed]
            for job in jobs:
                run = await tx.runs.get(job.current_run)
                if run is not None:
                    self.serve(run.job, run.run_id, run.model_version, await self.decoded(tx, run))

    def serve(self, job: JobName, run_id: RunId, version: int, model: JobModel) -> None:
        """Serve this model for the job from now on."""
        self._decoded[job, version] = model
        for stale in [key for key in self._decoded if key[0] == job and key[1] < version]:
            del self._decoded[stale]
        body = wire_samza.job_model_bytes(model)
        etag = f'"{version}-{model.content_hash()[:16]}"'.encode()
        headers = [
            (b"etag", etag),
            (b"cache-control", b"no-cache"),
            (wire_body.RUN_HEADER.lower().encode(), run_id.encode()),
            (wire_body.MODEL_VERSION_HEADER.lower().encode(), b"%d" % version),
        ]
        self._served[job] = Served(model, body, etag, headers, wire_body.header_lines(headers))

    def forget(self, job: JobName) -> None:
        """Remove the models of a deleted job."""
        self._served.pop(job, None)
        self._decoded = {key: model for key, model in self._decoded.items() if key[0] != job}

    def served(self, job: str) -> Served:
        """The job's model as served. Raises NoJobModel if the job has none."""
        found = self.find(job)
        if found is None:
            raise NoJobModel(f"job {job[:300]!r} has no job model: deploy a run of it first")
        return found

    def find(self, job: str) -> Served | None:
        return self._served.get(job)

    def only_job(self) -> JobName:
        """The only job. Raises UnknownJob if there is none, and ClientError if there are several."""
        if len(self._served) > 1:
            raise ClientError(f"there are {len(self._served)} jobs: add ?job=NAME, or begin the path with /jobs/NAME/")
        for job in self._served:
            return JobName(job)
        raise UnknownJob("there is no job yet")

    async def decoded(self, tx: ReadTransaction, run: RunRow) -> JobModel:
        """The model of a run."""
        key = (run.job, run.model_version)
        if key not in self._decoded:
            self._decoded[key] = await self.of_version(tx, *key)
        return self._decoded[key]

    async def of_version(self, tx: ReadTransaction, job: JobName, version: int) -> JobModel:
        """Raises NoJobModel."""
        row = await tx.jobmodels.get(job, version)
        if row is None:
            raise NoJobModel(f"job {job} has no model {version}")
        return wire_samza.parse_job_model(json.loads(row.document))
