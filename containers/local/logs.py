"""Log files of the processes that `sluice run` starts, and their rotation.

<home>/logs/coordinator.log             standard output and error of the coordinator
<home>/logs/<run>/container-<slot>.log  the same of a slot's container: its agent, driver, JVM and Python workers
<file>.1, <file>.2, …                   rotated files, the newest first

A file is rotated by copying and truncating it (decision 26): its descriptor is inherited by processes that never open it again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from sluice.core.errors import BadSettings
from sluice.logconfig import ERROR, REMEDY

_BLOCK = 1 << 20
_TAIL = 1 << 16
KEPT_RUNS = 20
"""The number of runs whose logs are kept: those that were written last."""


class RotationSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="ignore")

    log_max_bytes: int = Field(64 << 20, ge=0, description="a log file of `sluice run` is rotated when it is larger; 0: never")
    log_backups: int = Field(3, ge=0, le=100, description="how many rotated files are kept of each log file")


def read_rotation_settings() -> RotationSettings:
    """Raises BadSettings, naming the variable."""
    try:
        return RotationSettings()
    except ValidationError as error:
        problems = (f"SLUICE_{str(each['loc'][0]).upper()}: {each['msg']}, not {each['input']!r}" for each in error.errors())
        raise BadSettings("; ".join(problems)) from error


def rotate(file: Path, settings: RotationSettings) -> bool:
    """Rotate the file if it is too large. Returns whether it was rotated. Its writers must have opened it for appending.

    Lines that are written between the end of the copy and the truncation are lost. Without room for a copy, the oldest rotated file is
    deleted at each call, and the file is truncated when there is none left: on a full disk, the log must free space."""
    try:
        if not settings.log_max_bytes or file.stat().st_size <= settings.log_max_bytes:
            return False
    except FileNotFoundError:
        return False
    copy = _numbered(file, 0)
    try:
        with file.open("r+b") as log:
            try:
                if settings.log_backups:
                    with copy.open("wb") as out:
                        shutil.copyfileobj(log, out, _BLOCK)
                    _shift(file, settings.log_backups)
            except OSError:
                copy.unlink(missing_ok=True)
                if oldest := list(_rotated(file)):
                    oldest[-1].unlink()
                    return False
            log.truncate(0)
        for each in list(_rotated(file))[settings.log_backups :]:
            each.unlink()
    except OSError:  # a directory that became read-only, or was deleted
        return False
    return True


def _shift(file: Path, backups: int) -> None:
    """Rename the rotated files, and the copy to the first of them."""
    for number in range(backups, 0, -1):
        if (younger := _numbered(file, number - 1)).exists():
            younger.replace(_numbered(file, number))


def _numbered(file: Path, number: int) -> Path:
    """A rotated file; 0: the copy that is being written."""
    return file.with_name(f"{file.name}.{number}" if number else f"{file.name}.copy")


def _rotated(file: Path) -> Iterator[Path]:
    """The rotated files, from the newest to the oldest."""
    found = (each for each in file.parent.glob("*") if each.name.removeprefix(f"{file.name}.").isdecimal())
    yield from sorted(found, key=lambda each: int(each.suffix[1:]))


def last_line(file: Path) -> str:
    """The last line of the file that is not blank; "" if there is none. Of the two lines of `print_final_error`, that of the error."""
    with file.open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL))
        lines = log.read().decode(errors="replace").strip().splitlines()
    if len(lines) > 1 and lines[-1].startswith(REMEDY):
        return lines[-2].removeprefix(ERROR)
    return lines[-1] if lines else ""


def runs_by_age(logs: Path) -> Sequence[Path]:
    """The directories of the logs of runs, in the order in which they were last written."""
    try:
        return sorted((each for each in logs.iterdir() if each.is_dir()), key=_last_written)
    except FileNotFoundError:
        return []


def delete_old_runs(logs: Path, kept: int = KEPT_RUNS) -> None:
    """Delete the logs of all runs except the `kept` ones that were written last."""
    by_age = runs_by_age(logs)
    for each in by_age[: max(0, len(by_age) - kept)]:
        shutil.rmtree(each, ignore_errors=True)


def _last_written(directory: Path) -> float:
    return max((each.stat().st_mtime for each in (directory, *directory.iterdir())), default=0.0)
