"""`sluice class-archive`."""

from __future__ import annotations

import os
from typing import Annotated

from containers.spark.start.cds import ensure_archive
from sluice import logconfig
from sluice.cli.documents import Document, Json, print_reply
from sluice.wire.body import Reply


class FileReply(Reply):
    file: str


def class_archive(as_json: Annotated[Json, Document(FileReply)] = False) -> None:
    """Create an archive of Spark's classes, so that containers start faster.

    Containers on this machine then need a quarter less CPU to start, and share the memory of the archive. Use it in images, and on machines
    whose containers start often. The archive is written to SLUICE_JARS_DIR, and its path is printed. It works only with the present
    versions of Java and PySpark: create it again after an upgrade of either.
    """
    logconfig.configure(logconfig.read_log_settings())
    reply = FileReply(file=str(ensure_archive(os.environ).file))
    print_reply(reply, lambda _: reply.file, as_json=as_json)
