"""The job model and the localities as Apache Samza 1.8 spells them (dashes, and `keyBucket`), so that its tools can read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sluice.core.ids import ProcessorId, Ssp, TaskName
from sluice.core.jobmodels.model import ContainerModel, JobModel, TaskModel


def ssp_document(ssp: Ssp) -> dict[str, Any]:
    return {"system": ssp.system, "partition": ssp.partition, "stream": ssp.stream, "keyBucket": -1}


def job_model_document(model: JobModel) -> dict[str, Any]:
    """The job model as Samza 1.8 writes it (`JobModel` through SamzaObjectMapper)."""

    def task_document(task: TaskModel) -> dict[str, Any]:
        return {
            "task-name": task.name,
            "system-stream-partitions": [ssp_document(ssp) for ssp in sorted(task.ssps)],
            "changelog-partition": task.changelog_partition,
            "task-mode": "Active",
        }

    return {
        "config": dict(model.config),
        "containers": {
            pid: {"processor-id": pid, "tasks": {name: task_document(task) for name, task in container.tasks.items()}}
            for pid, container in model.containers.items()
        },
        "max-change-log-stream-partitions": model.changelog_partitions,
    }


def job_model_bytes(model: JobModel) -> bytes:
    return json.dumps(job_model_document(model), separators=(",", ":")).encode()


def parse_job_model(document: Mapping[str, Any]) -> JobModel:
    """Read a job model back; unknown keys are ignored, a missing task mode means Active, as in Samza, which writes the number of changelog
    partitions and does not read it."""

    def task_model(task: Mapping[str, Any]) -> TaskModel:
        ssps = frozenset(Ssp(s["system"], s["stream"], s["partition"]) for s in task["system-stream-partitions"])
        return TaskModel(TaskName(task["task-name"]), ssps, task["changelog-partition"])

    def container_model(pid: str, container: Mapping[str, Any]) -> ContainerModel:
        return ContainerModel(ProcessorId(pid), {TaskName(name): task_model(task) for name, task in container["tasks"].items()})

    containers = {ProcessorId(pid): container_model(pid, container) for pid, container in document["containers"].items()}
    used = [task.changelog_partition + 1 for container in containers.values() for task in container.tasks.values()]
    return JobModel(document["config"], containers, max([document.get("max-change-log-stream-partitions", 0), *used]))


def locality_document(processor_id: str, host: str) -> dict[str, str]:
    return {"id": processor_id, "host": host, "jmx-url": "", "jmx-tunneling-url": ""}
