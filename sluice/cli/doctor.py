"""`sluice doctor`: checks what a job needs on this machine and around it, and shows what to do about each problem.

Each check is independent of the others, and has a time limit. A check of a blob store writes one small blob and deletes it; nothing else is
changed.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import httpx
import typer
from rich.table import Table
from rich.text import Text

from sluice.blobs.locations import open_blob_store
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.cli.config import unknown_variables
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, Url
from sluice.client import EnvironmentToken, urls_of, verification
from sluice.client.connection import proxy, through
from sluice.core.access.credentials import without_credentials
from sluice.core.errors import SluiceError
from sluice.core.remedies import plain, remedy_of_error
from sluice.core.snapshots.snapshot import BlobId
from sluice.disks import space
from sluice.installed_spark import checked_spark
from sluice.job import load_job
from sluice.randomness import new_uuid
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties
from sluice.streams.log import LogSystem
from sluice.streams.settings import StreamSettings, read_stream_settings
from sluice.wire.body import Reply

LOCAL_KAFKA = "127.0.0.1:9092"

WITHIN = timedelta(seconds=15)
"""For each check."""

LITTLE_SPACE = 1 << 30
"""Bytes."""

SKEW, LARGE_SKEW = timedelta(seconds=5), timedelta(minutes=5)
"""Differences of clocks above which one is reported as a note, and as a problem. The coordinator refuses times that are further ahead than
the second (docs/waits.md)."""

JAVA = ("17", "21")
"""Spark's documentation, Overview: the versions of Java that Spark 4 runs on."""


class Level(StrEnum):
    GOOD = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(Reply):
    """`remedy`: what to do; "" if nothing."""

    check: str
    level: Level
    text: str
    remedy: str = ""


class DoctorReply(Reply):
    findings: tuple[Finding, ...]


def doctor(
    job_file: Annotated[Path | None, typer.Argument(metavar="[JOBFILE]", help="Also check this job and its input streams.")] = None,
    system: Annotated[str, typer.Option("--system", help="With JOBFILE: the system of its streams, log or kafka.")] = "log",
    as_json: Annotated[Json, Document(DoctorReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Check what a job needs: Java, Spark, the connector, settings, disks, the coordinator, streams, and rights in blob stores.

    Each problem is shown with what to do. Exit code 1 if there is a problem.
    """
    reply = DoctorReply(findings=tuple(asyncio.run(examine(coordinator, job_file, system))))
    print_reply(reply, lambda _: _table(reply.findings), as_json=as_json)
    raise typer.Exit(1 if any(each.level is Level.PROBLEM for each in reply.findings) else 0)


async def examine(coordinator: str, job_file: Path | None = None, system: str = "log") -> Sequence[Finding]:
    checks: list[tuple[str, Callable[[], AsyncIterator[Finding]]]] = [
        ("java", _java),
        ("spark", _spark),
        ("connector", _connector),
        ("settings", _settings),
        ("home", _home),
        ("coordinator", lambda: _coordinator(coordinator)),
        ("kafka", _kafka),
        ("blob stores", _blob_stores),
    ]
    if job_file is not None:
        checks.append(("job", lambda: _job(job_file, system)))
    return [finding for name, check in checks for finding in await _limited(name, check)]


async def _limited(name: str, check: Callable[[], AsyncIterator[Finding]]) -> Sequence[Finding]:
    """The findings of a check. An error and a missing answer are findings, too."""
    found: list[Finding] = []
    try:
        async with asyncio.timeout(WITHIN.total_seconds()):
            found += [each async for each in check()]
    except SluiceError as error:
        found.append(_problem(name, f"{error.title()} {error}", plain(remedy_of_error(error))))
    except (TimeoutError, subprocess.TimeoutExpired):
        remedy = "Check the network, and that the server is not overloaded."
        found.append(_problem(name, f"no answer within {WITHIN.total_seconds():g} s", remedy))
    except OSError as error:
        found.append(_problem(name, str(error), "Check that the file or address exists, and that this user may use it."))
    return found


def _good(check: str, text: str) -> Finding:
    return Finding(check=check, level=Level.GOOD, text=without_credentials(text))


def _note(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, level=Level.NOTE, text=without_credentials(text), remedy=remedy)


def _problem(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, level=Level.PROBLEM, text=without_credentials(text), remedy=remedy)


# --- this machine ----------------------------------------------------------------------------------------------------


async def _java() -> AsyncIterator[Finding]:
    jars = import_module("containers.jars")
    program = await asyncio.to_thread(jars.check_java, os.environ)
    asked = await asyncio.to_thread(subprocess.run, [program, "-version"], capture_output=True, text=True, timeout=10, check=False)
    found = re.search(r'version "([\d.]+)', asked.stderr)
    number = found[1].removeprefix("1.").split(".")[0] if found else "unknown"
    if number in JAVA:
        yield _good("java", f"version {number} at {program}")
    else:
        remedy = "Spark needs Java 17 or 21: install one, or set JAVA_HOME to its directory."
        yield _problem("java", f"{program} is of version {number}", remedy)


async def _spark() -> AsyncIterator[Finding]:
    found = await asyncio.to_thread(checked_spark, os.environ)
    yield _good("spark", f"Spark {found.version} in {found.home}")


async def _connector() -> AsyncIterator[Finding]:
    jars = import_module("containers.jars")
    sets = await asyncio.to_thread(jars.connectors_of, os.environ)
    found = await asyncio.to_thread(jars.complete_set, sets, os.environ)
    directory: Path = jars.jars_directory(os.environ) / (found or sets[0]).directory_name
    if found is not None:
        yield _good("connector", f"Spark's connector for Kafka is in {directory}")
    else:
        remedy = (
            "Where the network is restricted, copy the directory that `sluice kafka jars --connector` makes elsewhere (SLUICE_JARS_DIR)."
        )
        yield _note("connector", f"Spark's connector for Kafka will be fetched to {directory.parent} by the first job on Kafka", remedy)


async def _settings() -> AsyncIterator[Finding]:
    for each in unknown_variables(os.environ):
        yield _note("settings", each, "Correct its name, or unset it. `sluice config show` lists the variables.")
    settings = import_module("coordinator.settings").read_settings()
    yield _good("settings", f"those of a coordinator on {settings.host}:{settings.port} are valid")
    try:
        import_module("containers.settings").read_container_settings()
    except SluiceError as error:
        others = [each for each in str(error).split("; ") if not each.startswith("SLUICE_RUN_ID: set it")]
        if others:
            yield _problem("settings", f"those of a container: {'; '.join(others)}", "`sluice config show container` lists them.")
            return
    yield _good("settings", "those of a container are valid")


async def _home() -> AsyncIterator[Finding]:
    settings = import_module("coordinator.settings").read_settings()
    home: Path = settings.home.absolute()
    at = next(each for each in (home, *home.parents) if each.exists())
    if not os.access(at, os.W_OK | os.X_OK):
        yield _problem("home", f"{at} cannot be written", "Give another directory with --home or SLUICE_HOME, or change its owner.")
        return
    if at == home and (await asyncio.to_thread(home.stat)).st_mode & 0o077:
        yield _note("home", f"other users of this machine may read {home}", f"chmod 700 {home}, unless other users run containers there.")
    free = (await asyncio.to_thread(space, at)).free
    size = f"{home}: {free / 2**30:,.1f} GiB are free"
    yield _good("home", size) if free > LITTLE_SPACE else _problem("home", size, "Make room: a full disk stops batches.")


# --- servers ---------------------------------------------------------------------------------------------------------


async def _coordinator(urls: str) -> AsyncIterator[Finding]:
    for url in urls_of(urls):
        async for finding in _coordinator_at(url):
            yield finding


async def _coordinator_at(url: str) -> AsyncIterator[Finding]:
    token = EnvironmentToken(url)()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    start = "Start one with `sluice coordinator`, or name it with --coordinator or SLUICE_COORDINATOR_URL. `sluice run` starts its own."
    via = proxy()
    transport = httpx.AsyncHTTPTransport(verify=verification(url), proxy=via)
    async with httpx.AsyncClient(base_url=url, transport=transport, headers=headers, timeout=WITHIN.total_seconds() / 3) as http:
        try:
            answer = await http.get("/livez")
        except httpx.TransportError as error:
            yield _note("coordinator", f"{url} does not answer{through(via)}: {error or type(error).__name__}", start)
            return
        if answer.status_code != httpx.codes.OK or answer.text != "ok":
            yield _problem("coordinator", f"{url} answers {answer.status_code}, and not as a coordinator", start)
            return
        yield _skew(url, answer, datetime.now(UTC))
        jobs = await http.get("/jobs", params={"limit": 1})
        if jobs.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            remedy = "Set SLUICE_TOKEN or SLUICE_TOKEN_FILE to a token of this coordinator (`sluice token create`)."
            yield _problem("coordinator", f"the token is refused: {jobs.json().get('detail', jobs.status_code)}", remedy)
            return
        ready = await http.get("/readyz", params={"verbose": ""})
        for line in ready.text.splitlines():
            if line.startswith("[-]"):
                yield _problem("coordinator", line.removeprefix("[-] "), "The coordinator's log has more. See docs/operating.md.")


def _skew(url: str, answer: httpx.Response, now: datetime) -> Finding:
    """The `Date` of an answer has whole seconds."""
    given = answer.headers.get("date", "")
    difference = abs(now - parsedate_to_datetime(given)) - timedelta(seconds=1) if given else timedelta(0)
    text = f"{url} answers, and its clock differs by {max(difference, timedelta(0)).total_seconds():.0f} s"
    remedy = "Synchronise the clocks of the machines (NTP)."
    if difference > LARGE_SKEW:
        return _problem("coordinator", text, remedy)
    return _note("coordinator", text, remedy) if difference > SKEW else _good("coordinator", text)


async def _kafka() -> AsyncIterator[Finding]:
    settings = read_stream_settings()
    if not settings.kafka_bootstrap:
        remedy = "For jobs on Kafka set SLUICE_KAFKA_BOOTSTRAP; `sluice kafka up` starts a broker for development."
        yield _note("kafka", "none is configured", remedy)
        return
    kafka = _kafka_of(settings)
    try:
        found = len(await kafka.streams())
    finally:
        await kafka.close()
    yield _good("kafka", f"{settings.kafka_bootstrap} answers; {found} topics are visible")


def _kafka_of(settings: StreamSettings) -> KafkaSystem:
    return KafkaSystem(settings.kafka_bootstrap or LOCAL_KAFKA, KafkaProperties.read(settings.kafka_properties), timeout=WITHIN / 2)


async def _blob_stores() -> AsyncIterator[Finding]:
    for name, url in import_module("coordinator.settings").read_settings().blob_places.items():
        shown = f"{name} ({without_credentials(url)})"
        directory = Path(unquote(urlsplit(url).path)) if url.startswith("file:") else None
        if directory is not None and not directory.exists():
            yield _good("blob stores", f"{shown} is created by the first coordinator")
            continue
        store = open_blob_store(url)
        try:
            await store.open(create=True)
            await _try_rights(store)
        except SluiceError as error:
            remedy = "Containers and the coordinator need the rights to get, put, tag, list and delete below the store's prefix."
            yield _problem("blob stores", f"{shown}: {error}", remedy)
        else:
            yield _good("blob stores", f"{shown} can be written, read, listed and cleaned up")
        finally:
            await store.close()


async def _try_rights(store: BlobStore) -> None:
    """Use each right once. Raises BlobStoreUnusable, BlobUnavailable, BlobMissing."""
    about, blob = RequestContext(Purpose.OPEN), BlobId(f"doctor/{new_uuid().hex}")
    steps: Sequence[tuple[str, Callable[[], Awaitable[Any]]]] = (
        ("put", lambda: store.put(blob, b"sluice doctor", about, ttl=timedelta(days=1))),
        ("get", lambda: store.get(blob, BytesIO(), about)),
        ("remove the tag of", lambda: store.remove_ttl(blob, about)),
        ("list", lambda: _listed(store, about)),
    )
    try:
        for what, step in steps:
            try:
                await step()
            except SluiceError as error:
                raise type(error)(f"cannot {what} a blob: {error}") from error
    finally:
        await store.delete([blob], about)


async def _listed(store: BlobStore, about: RequestContext) -> None:
    async for _ in store.list("doctor/", about):
        return


# --- the job ---------------------------------------------------------------------------------------------------------


async def _job(file: Path, system: str) -> AsyncIterator[Finding]:
    job = load_job(file)
    yield _good("job", f"{file}: job {job.name} with {len(job.stages)} stages")
    settings = read_stream_settings()
    streams = _kafka_of(settings) if system == "kafka" else LogSystem(settings.log_directory)
    try:
        for each in job.inputs:
            try:
                count = await streams.partitions(each.name)
            except SluiceError as error:
                remedy = f"Create it: sluice streams create {each.name} --partitions N --system {system}. Or name another one with --bind."
                yield _problem("job", f"input {each.name}: {error}", remedy)
            else:
                yield _good("job", f"input {each.name}: {count} partitions")
    finally:
        await streams.close()


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    styles = {Level.GOOD: "green", Level.NOTE: "yellow", Level.PROBLEM: "bold red"}
    for each in findings:
        text = Text(each.text)
        if each.remedy:
            text.append(f"\n{each.remedy}", style="dim")
        table.add_row(Text(each.level, style=styles[each.level]), each.check, text)
    return table
