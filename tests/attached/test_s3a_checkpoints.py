"""Checkpoints of scripts on `s3a://`: their lock, and their adoption, on a real S3 server. `make test-s3a` runs these tests: Hadoop's S3A
needs jars of 660 MB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from containers.attached.checkpoints.adoption import adopt_checkpoint
from containers.spark.scripts.checkpoint import ScriptCheckpoint
from tests.support.s3servers import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not os.environ.get("SLUICE_TEST_S3A"), reason="run `make test-s3a`")]


@pytest.fixture(scope="module")
def session(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from bench.checkpoint_s3a import settings  # not on a Spark on which only scripts run
    from containers.spark.session import start_session

    home = tmp_path_factory.mktemp("s3a")
    made = start_session("s3a", "local[2]", home, settings(s3_server.endpoint.removeprefix("http://")), home)
    yield made
    made.stop()


@pytest.fixture
def location(s3: S3Server) -> str:
    return f"s3a://{s3.new_bucket()}/counts"


def started(session: SparkSession, directory: Path, location: str) -> StreamingQuery:
    (directory / "in").mkdir(exist_ok=True)
    (directory / "in" / "words.txt").write_text("one\ntwo\ntwo\n")
    counts = session.readStream.text(str(directory / "in")).groupBy("value").count()
    writer = counts.writeStream.format("noop").outputMode("complete")
    return writer.option("checkpointLocation", location).start()


def test_no_query_starts_on_a_checkpoint_whose_state_a_drain_has_flushed(session: SparkSession, location: str, tmp_path: Path) -> None:
    query = started(session, tmp_path, location)
    query.processAllAvailable()
    query.stop()
    checkpoint = ScriptCheckpoint(session, location)
    for _ in range(2):  # it may be repeated
        checkpoint.mark_emptied("drain-1", 0)
    assert checkpoint.emptied_by() == "drain-1"
    for _ in range(2):  # as in a restart loop
        with pytest.raises(StreamingQueryException, match="drain drain-1 has written out its state"):
            started(session, tmp_path, location).processAllAvailable()


def test_a_new_checkpoint_is_locked_until_the_offsets_of_its_sources_are_written(
    session: SparkSession, location: str, tmp_path: Path
) -> None:
    checkpoint = ScriptCheckpoint(session, location)
    checkpoint.begin_at({"orders": {"0": 5}})
    assert checkpoint.begins_at() == {"orders": {"0": 5}}
    with pytest.raises(StreamingQueryException, match="must begin at the offsets of a drain"):
        started(session, tmp_path, location).processAllAvailable()
    checkpoint.unlock()
    query = started(session, tmp_path, location)
    query.processAllAvailable()
    query.stop()
    info = checkpoint.inspect()
    assert info is not None
    assert info.committed == 0


def test_a_checkpoint_there_is_adopted_with_its_query_id_and_batches_and_does_not_change(
    session: SparkSession, location: str, tmp_path: Path
) -> None:
    query = started(session, tmp_path, location)
    query.processAllAvailable()
    query.stop()
    former = ScriptCheckpoint(session, location)
    adopt_checkpoint(session, location, tmp_path / "counts")
    adopted = ScriptCheckpoint(session, (tmp_path / "counts").as_uri())
    assert adopted.inspect() == former.inspect()
    (tmp_path / "in" / "more.txt").write_text("two\n")
    query = started(session, tmp_path, (tmp_path / "counts").as_uri())
    query.processAllAvailable()
    query.stop()
    assert [found.committed for found in (adopted.inspect(), former.inspect()) if found is not None] == [1, 0]
