"""A Kafka broker on this machine, for development and tests. Each directory is one broker:

    server.properties, log4j2.properties    rewritten at each start
    cluster-id                              the id under which data/ was formatted
    data/                                   topics and their records
    broker.json                             the process: pid, start time, ports
    server.log, server.log.1                output of this and of the previous start
    tls/                                    its key, and the certificate for clients

The broker keeps running after the command that started it. A lock beside the directory serializes starts and stops. If a start is killed,
the next one finds the broker by its pid, or formats the data directory again if that was not completed.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import psutil
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from containers.errors import BrokerUnavailable, DiskUnwritable, disk_error
from containers.jars import broker_jars, java
from containers.local.kafka_config import LOG4J, KeyStore, Secured, server_properties
from containers.local.ports import LOOPBACK, check_free, free_ports
from sluice.randomness import new_uuid, token_hex

_POLL = timedelta(milliseconds=100)
_ONE_ANSWER = timedelta(seconds=5)
_ORDERLY_END = timedelta(seconds=20)
_LAST_LINES = 12
_MEMORY = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")


@dataclass(frozen=True, slots=True)
class Process:
    """A started broker. `began`: seconds after boot, unaffected by changes of the clock, to recognize a later process with the same pid."""

    pid: int
    began: float
    port: int
    secured_port: int | None

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def secured(self) -> str | None:
        """The bootstrap server of the secured listener."""
        return None if self.secured_port is None else f"{LOOPBACK}:{self.secured_port}"

    def is_alive(self) -> bool:
        with suppress(psutil.Error):
            found = psutil.Process(self.pid)
            return found.status() != psutil.STATUS_ZOMBIE and abs(_began(found) - self.began) < 0.05
        return False


def _began(process: psutil.Process) -> float:
    return process.create_time() - psutil.boot_time()


class Broker:
    """`port`: None chooses a free one. `sasl` (user -> password) and `tls` open a second listener, see `Process.secured`. `jars` returns
    the class path of the broker, and is called only for a start."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        sasl: Mapping[str, str] | None = None,
        tls: bool = False,
        jars: Callable[[], Sequence[Path]] = broker_jars,
        timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        self.directory = directory.absolute()
        self._port = port
        self._sasl = dict(sasl or {})
        self._tls = tls
        self._jars = jars
        self._timeout = timeout
        self._record = self.directory / "broker.json"
        self._log = self.directory / "server.log"
        self._data = self.directory / "data"
        self._properties = self.directory / "server.properties"

    @property
    def certificate(self) -> Path:
        """The certificate that clients must trust, as PEM."""
        return self.directory / "tls" / "certificate.pem"

    def create_directory(self) -> None:
        """Raises DiskUnwritable if the broker's files cannot be written."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, f"{self.directory}: {error.strerror}") from error
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise DiskUnwritable(f"{self.directory}: this user may not write it")

    def running(self) -> Process | None:
        """The broker's process, whether or not it answers already."""
        try:
            process = Process(**json.loads(self._record.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return process if process.is_alive() else None

    async def up(self) -> Process:
        """Start the broker unless it is running, and wait until it answers. Raises BrokerUnavailable, also if it runs at another port,
        DiskUnwritable and JarsUnavailable. After a failure or a cancellation, nothing that it started keeps running."""
        self.create_directory()
        async with self._locked():
            found = self.running()
            if found is None:
                return await self._start()
            if self._port not in (None, found.port):
                raise BrokerUnavailable(f"the broker of {self.directory} is running at {found.bootstrap}: stop it first, or omit the port")
            if found.secured is None and (self._sasl or self._tls):
                raise BrokerUnavailable(f"the broker of {self.directory} is running without a second listener: stop it first")
            await self._await_answer(found)
            return found

    async def down(self) -> bool:
        """Stop the broker, and kill it if it does not stop in time. False if it was not running."""
        if not self.directory.is_dir():
            return False
        async with self._locked():
            return await self._stop()

    async def wipe(self) -> bool:
        """Stop the broker and remove its directory. False, and nothing is removed, if there is no broker in it."""
        if not self._properties.is_file():
            return False
        async with self._locked():
            await self._stop()
            await asyncio.to_thread(shutil.rmtree, self.directory)
        return True

    # --- starting --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        with self.directory.with_name(f"{self.directory.name}.lock").open("wb") as lock:
            while True:  # a thread waiting for a lock could not be cancelled
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(_POLL.total_seconds())
            yield

    async def _start(self) -> Process:
        secured_port, controller_port, port, *_ = (each for each in free_ports(4) if each != self._port)
        if self._port is not None:
            port = self._port
            try:
                check_free(port)
            except OSError as error:
                raise BrokerUnavailable(f"{LOOPBACK}:{port} is not available ({error.strerror}): choose another port") from error
        java_command = [self._program("java"), "-cp", os.pathsep.join(map(str, await asyncio.to_thread(self._jars)))]
        secured = Secured(secured_port, self._sasl, await self._keys() if self._tls else None) if self._sasl or self._tls else None
        logging = self.directory / "log4j2.properties"
        logging.write_text(LOG4J)
        java_command.append(f"-Dlog4j2.configurationFile={logging.as_uri()}")
        _write_private(self._properties, server_properties(self._data, port, controller_port, secured))
        await self._format(java_command)
        if self._log.exists():
            self._log.replace(self._log.with_suffix(".log.1"))
        with self._log.open("wb") as log:
            started = subprocess.Popen(  # noqa: ASYNC220 — asyncio's own would end it together with the loop
                [*java_command, *_MEMORY, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
            )
        try:
            process = Process(started.pid, _began(psutil.Process(started.pid)), port, secured.port if secured else None)
            _write_private(self._record, json.dumps(asdict(process)))
            await self._await_answer(process)
        except BaseException:
            started.kill()
            started.wait()
            self._record.unlink(missing_ok=True)
            raise
        return process

    async def _format(self, java_command: Sequence[str]) -> None:
        """Format the data directory, once."""
        done = self.directory / "cluster-id"
        if done.exists():
            return
        if self._data.exists():
            await asyncio.to_thread(shutil.rmtree, self._data)
        cluster = (
            urlsafe_b64encode(new_uuid().bytes)[:22].decode().replace("-", "A")
        )  # an id that begins with "-" would be taken for an option
        await _run_command([*java_command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)])
        done.write_text(f"{cluster}\n")

    async def _keys(self) -> KeyStore:
        """The existing key and certificate, or new ones."""
        keys = KeyStore(self.certificate.with_name("keys.p12"), token_hex(16))
        password = keys.file.with_name("password")
        if self.certificate.exists():
            return KeyStore(keys.file, password.read_text())
        await asyncio.to_thread(shutil.rmtree, keys.file.parent, ignore_errors=True)
        keys.file.parent.mkdir(mode=0o700)
        _write_private(password, keys.password)
        store = ["-keystore", str(keys.file), "-storetype", "PKCS12", "-storepass:file", str(password), "-alias", "broker"]
        names = ["-dname", f"CN={LOOPBACK}", "-ext", f"san=ip:{LOOPBACK},dns:localhost", "-ext", "bc=ca:true"]
        await _run_command([self._program("keytool"), "-genkeypair", "-keyalg", "RSA", "-validity", "3650", *names, *store])
        await _run_command([self._program("keytool"), "-exportcert", "-rfc", "-file", str(self.certificate), *store])
        return keys

    def _program(self, name: str) -> str:
        found = java(os.environ, name)
        if found is None:
            raise BrokerUnavailable(f"Java's program {name!r} was not found: install Java 17 or 21, or set JAVA_HOME")
        return found

    async def _await_answer(self, process: Process) -> None:
        """Wait until the broker answers, by polling its port."""
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                while not await _answers(process.bootstrap):
                    if not process.is_alive():
                        raise BrokerUnavailable(f"the broker ended. The last lines of {self._log}:\n{self._last_lines()}")
                    await asyncio.sleep(_POLL.total_seconds())
        except TimeoutError:
            reason = f"the broker at {process.bootstrap} did not answer within {self._timeout.total_seconds():g} s"
            raise BrokerUnavailable(f"{reason}. The last lines of {self._log}:\n{self._last_lines()}") from None

    def _last_lines(self) -> str:
        return _last_lines(self._log.read_text(errors="replace"))

    # --- stopping --------------------------------------------------------------------------------------------------

    async def _stop(self) -> bool:
        found = self.running()
        if found is not None:
            await _end(found)
        self._record.unlink(missing_ok=True)
        return found is not None


async def _end(process: Process) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(process.pid).terminate()
        try:
            async with asyncio.timeout(_ORDERLY_END.total_seconds()):
                await _await_end(process)
        except TimeoutError:
            psutil.Process(process.pid).kill()
            await _await_end(process)


async def _await_end(process: Process) -> None:
    """Wait until the process has ended, by polling, because it may not be a child of this process."""
    while process.is_alive():  # noqa: ASYNC110 — see above
        await asyncio.sleep(_POLL.total_seconds())


async def _answers(bootstrap: str) -> bool:
    """Whether a broker answers that has joined its cluster. Before that it cannot create topics."""
    host, _, port = bootstrap.rpartition(":")
    try:
        _, connection = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    connection.close()
    client = AIOKafkaClient(bootstrap_servers=bootstrap, request_timeout_ms=int(_ONE_ANSWER.total_seconds() * 1000))
    try:
        await client.bootstrap()
        return bool(client.cluster.brokers())
    except (KafkaError, OSError):
        return False
    finally:
        await client.close()


async def _run_command(command: Sequence[str]) -> None:
    """Run a command. Raises BrokerUnavailable, with its output, if it fails."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise BrokerUnavailable(f"{Path(command[0]).name} failed. Its output:\n{_last_lines(output.decode(errors='replace'))}")


def _last_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]  # without stack frames
    return "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])


def _write_private(file: Path, text: str) -> None:
    """Write the file atomically, readable for its owner only."""
    new = file.with_name(f"{file.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:  # noqa: PTH123 — Path.open takes no mode for a new file
        opened.write(text)
    new.replace(file)
