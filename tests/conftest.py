from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from containers.local.kafka import Process
from sluice.core.errors import SluiceError
from tests.support import script_archive
from tests.support.api import Caller, calling
from tests.support.fakes import FakeClock
from tests.support.jvm_starts import JvmStarts
from tests.support.preloaded import Preloaded
from tests.support.processes import starting_with
from tests.support.reports import times_of_folders
from tests.support.s3servers import S3_CREDENTIALS, S3Server
from tests.support.servers import NotInstalled, Postgres
from tests.support.shared_servers import ServersOfController, SharedServers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

# No deadline, so that a busy machine fails no test, and the same examples each time. HYPOTHESIS_PROFILE=thorough draws new ones, and more.
settings.register_profile("quick", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("thorough", deadline=None, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# JVMs of tests live for seconds: the optimising compiler would take a quarter of their CPU time, and loading classes two fifths.
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:TieredStopAtLevel=1 {script_archive.options()}")

# A shell that starts the tests in the background ignores Ctrl-C, and so would the commands of tests that are interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST_FIRST = ("spark", "attached", "processes", "crash", "histories", "simulation", "integration", "unit")
SERVERS = pytest.StashKey[SharedServers | ServersOfController]()
JVMS = pytest.StashKey[JvmStarts]()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.stash[SERVERS] = ServersOfController(config.workerinput["servers"])
    else:
        config.stash[JVMS] = JvmStarts()
        config.stash[SERVERS] = servers = SharedServers()
        config.add_cleanup(servers.end)


def pytest_configure_node(node: WorkerController) -> None:
    servers = node.config.stash[SERVERS]
    node.workerinput["servers"] = servers.listen()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark:
    return OneSpark(config, log)


class OneSpark(LoadScopeScheduling):  # type: ignore[misc]
    """A worker runs all tests of a file, and one worker those of all files that use the session of Spark. They are started in the order in
    which they are collected."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if file.startswith(("tests/spark/", "tests/attached/")) else file


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile, and never look at the thousands of tests again: the unit tests then take a fifth less time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = [each for every in terminalreporter.stats.values() for each in every if isinstance(each, pytest.TestReport)]
    for line in times_of_folders(reports):
        terminalreporter.write_line(line)
    if starts := config.stash[JVMS].end():
        terminalreporter.write_line(starts)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the slowest tests first, so that no worker is left alone with them at the end. Leave out those of `make test-long`."""
    if "long" not in config.getoption("markexpr"):
        config.hook.pytest_deselected(items=[each for each in items if each.get_closest_marker("long")])
        items[:] = [each for each in items if not each.get_closest_marker("long")]
    here = Path(__file__).parent
    items.sort(key=lambda item: LONGEST_FIRST.index(item.path.relative_to(here).parts[0]))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests of a process, with the settings of containers. With a version of Spark on which only scripts run
    (`make matrix`), it has the settings of a script."""
    from pyspark import __version__

    from containers.jars import connector_jars
    from sluice.installed_spark import release_of

    try:
        jars = {"spark.jars": ",".join(map(str, connector_jars()))}
    except SluiceError:  # the tests of Kafka then report what is missing
        jars = {}
    if release_of(__version__) < (4, 2):
        session = script_session(jars)
        yield session
        session.stop()
        return
    from containers.spark.session import start_session
    from containers.spark.start.cds import find_archive

    with TemporaryDirectory(prefix="sluice-") as sockets:
        scratch = tmp_path_factory.mktemp("spark")
        session = start_session("tests", "local[2]", scratch, jars, Path(sockets), find_archive(os.environ))
        yield session
        session.stop()


def script_session(settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # `python3` may lack pyarrow
    named = SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1").config(map=dict(settings))
    return named.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()


@contextmanager
def skipping() -> Iterator[None]:
    """A test whose server is not installed is skipped; with REQUIRE_SERVERS=1, as in CI, it fails."""
    try:
        yield
    except NotInstalled as error:
        if os.environ.get("REQUIRE_SERVERS") == "1":
            pytest.fail(f"{error}, and REQUIRE_SERVERS=1", pytrace=False)
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    with skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    with skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A worker of pytest-xdist sends its reports as UTF-8 and dies at text that cannot be encoded, so lone surrogates are sent as
    escapes.
    """
    return sendable((yield))


def sendable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {sendable(key): sendable(value) for key, value in value.items()}
        case list() | tuple():
            return type(value)(map(sendable, value))
        case _:
            return value


@pytest.fixture(scope="session", autouse=True)
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands of Sluice are forks of a process that has imported them (tests/support/preloaded.py)."""
    starter = Preloaded(tmp_path_factory.mktemp("preloaded") / "log")
    with closing(starter), starting_with(starter):
        yield


@pytest.fixture(scope="session")
def shared_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Servers of the whole run, by name. Tests of other workers use them at the same time."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent
    return lambda name: pytestconfig.stash[SERVERS].get(name, directory)


@pytest.fixture(scope="session")
def kafka_broker(shared_server: Callable[[str], Any]) -> Process:
    """One Kafka broker for the whole run; each test chooses its own topic names."""
    return cast(Process, shared_server("kafka"))


@pytest.fixture(scope="session")
def kafka_server(kafka_broker: Process) -> str:
    """The bootstrap server of the Kafka broker."""
    return kafka_broker.bootstrap


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def postgres_server(shared_server: Callable[[str], Any]) -> Postgres:
    """One server for all tests that do not stop it; each test has its own database."""
    return cast(Postgres, shared_server("postgres"))


@pytest.fixture(scope="session")
def s3_server(shared_server: Callable[[str], Any]) -> S3Server:
    """One S3 server for the whole run; each test has a bucket of its own."""
    return cast(S3Server, shared_server("s3"))


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, and its credentials in the environment."""
    for name, value in S3_CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
async def caller(home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    """A coordinator whose log has the stream `flights` of two partitions."""
    async with calling(home, clock) as made:
        made.log.create("flights", 2)
        yield made
