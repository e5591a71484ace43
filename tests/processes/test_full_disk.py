"""`sluice run` on a disk that becomes full while the job runs: database, log, state, backups, temporary files and logs are all on it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.core.errors import StreamUnavailable
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from tests.processes.stage import TOY
from tests.support.disks import small_disk
from tests.support.processes import WAIT_SECONDS, kill_whole, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WRITER = Writer(Lineage("feeder"), "feeder", Generation(1))


def feed(log: Log, first: int, end: int) -> None:
    records = [Record(str(n).encode(), partition=0) for n in range(first, end)]
    assert log.append("numbers", records, writer=WRITER, batch=first, now_micros=1)


def written(log: Log) -> int:
    return sum(log.latest("out").values())


def await_report(process: subprocess.Popen[bytes], said: Path, log: Log, sent: int) -> bool:
    """Wait until the full disk is reported, or all records are written. Returns whether it is reported."""

    def ended() -> bool:
        if process.poll() is not None or "waiting for room on a disk" in said.read_text():
            return True
        try:
            return written(log) == sent
        except StreamUnavailable:  # the file of a stream cannot be opened on a full disk
            return False

    wait_for("the report of the full disk", ended)
    return "waiting for room on a disk" in said.read_text()


@pytest.mark.long
def test_a_job_waits_while_its_disk_is_full_and_writes_each_record_once_when_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(TOY)
    said = tmp_path / "run.log"
    with small_disk(tmp_path / "home", 128 << 20) as disk:
        log = Log(disk.root / "log")
        log.create("numbers", 1)
        log.create("out", 1)
        feed(log, 0, 20)
        sluice = str(Path(sys.executable).with_name("sluice"))
        command = [sluice, "run", "job.py", "--home", str(disk.root), "--port", "0", "--start", "earliest", "--master", "local[1]"]
        with said.open("wb") as out:
            process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            wait_for("the first records", lambda: process.poll() is not None or written(log) == 20)
            sent, is_reported = 20, False
            while process.poll() is None and not is_reported:
                if disk.is_filled:  # a batch has read and written the last records before the disk was full
                    disk.make_room()
                disk.fill(leave=4 << 20)  # so that little is left to fill before the next batch has read the records
                feed(log, sent, sent + 20)
                sent += 20
                disk.fill()
                is_reported = await_report(process, said, log, sent)
            disk.make_room()
            wait_for("the other records", lambda: process.poll() is not None or written(log) == sent)
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_SECONDS) == 0, said.read_text()
            values = sorted(int(row[3] or b"") for rows in log.read("out", 0, 0, 1000) for row in rows)
            assert values == list(range(sent))
        finally:
            kill_whole(process)
            print(*(f"--- {file}\n{file.read_text(errors='replace')[-3000:]}" for file in (disk.root / "logs").rglob("*.log")), sep="\n")
