"""The audit log as lines of JSON, in a file or on standard output, for programs that collect logs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from sluice.core.errors import AuditUnavailable

STANDARD_OUTPUT = Path("-")


class AuditLines:
    """Appends to `file`; `STANDARD_OUTPUT` for standard output, None for nothing. The file is opened for each line, so that it can be
    renamed at any time."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    async def append(self, event: Mapping[str, object]) -> None:
        """Raises AuditUnavailable."""
        if self._file is None:
            return
        line = json.dumps(event, ensure_ascii=True).encode() + b"\n"
        try:
            await asyncio.to_thread(self._write, self._file, line)
        except OSError as error:
            raise AuditUnavailable(f"audit_file {self._file} cannot be written: {error.strerror}") from error

    @staticmethod
    def _write(file: Path, line: bytes) -> None:
        """Raises OSError also if a part of the line was written."""
        if file == STANDARD_OUTPUT:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return
        opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        try:
            if os.write(opened, line) != len(line):
                raise OSError(0, "the disk is full")
        finally:
            os.close(opened)
