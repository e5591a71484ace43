"""The process of an attached script: signals, children that it forks, and its end. Each script is a process of its own, without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST
from tests.support.processes import ROOT

ATTACHED = """
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

from containers.attached.app import App
from sluice.clock import SystemClock
from sluice.core.ids import JobName
from tests.support.script_peers import AgentPeer

looked = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
stopping, may_stop = threading.Event(), threading.Event()
may_stop.set()


class Queries:
    # The list of the JVM's queries, which is empty. Each process that reads it is recorded. A stop waits until it may.
    def elements(self):
        os.write(looked, f"{os.getpid()}\\n".encode())
        if threading.current_thread().name == "sluice-stop":
            stopping.set()
            may_stop.wait()
        return self

    def hasMoreElements(self):
        return False


state = SimpleNamespace(activeStreamingQueries=Queries)


def local_property(name):
    assert threading.current_thread() is not threading.main_thread(), "a signal may have interrupted a request of this thread to the JVM"


context = SimpleNamespace(_jsc=object(), getLocalProperty=local_property)
spark = SimpleNamespace(_jsparkSession=SimpleNamespace(sharedState=lambda: state), sparkContext=context)
ours, theirs = socket.socketpair()
agent = AgentPeer(ours)
agent.may_run()


def attach(*, ends_script=False, stop_timeout=60):
    app = App(spark, JobName("orders"), (), SystemClock(), timedelta(seconds=stop_timeout))
    app.start(theirs, ends_script=ends_script)
    app.handle_end()
    return app


def later(event, work):
    # Do this on another thread when the event is set.
    threading.Thread(target=lambda: (event.wait(), work()), daemon=True).start()


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
"""


def run(script: str, tmp_path: Path) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Run the script. Returns also the pids of the processes that have looked for queries."""
    looked = tmp_path / "looked"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ATTACHED + script, str(looked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    return done, [int(pid) for pid in looked.read_text().split()] if looked.exists() else []


def test_a_pool_of_forked_processes_ends_without_stopping_the_queries_of_the_script(tmp_path: Path) -> None:
    done, looked = run(
        """
app = attach()
with multiprocessing.get_context("fork").Pool(2) as pool:
    for _ in range(2):
        pool.apply_async(time.sleep, (60,))  # a worker that waits for work may end before it gets a signal
    time.sleep(0.5)
print("script", os.getpid(), flush=True)
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert set(looked) == {int(done.stdout.split()[1])}


def test_a_forked_child_gets_the_handler_that_the_script_had_set(tmp_path: Path) -> None:
    done, looked = run(
        """
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))
app = attach()
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), flush=True)
print("script", os.getpid(), flush=True)
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "child 7" in done.stdout
    assert set(looked) == {int(done.stdout.split()[-1])}


def test_a_forked_child_that_ends_does_not_report_the_end_of_the_script(tmp_path: Path) -> None:
    done, _ = run(
        """
app = attach()
child = os.fork()
if not child:
    sys.exit(0)
os.waitpid(child, 0)
print("after the child:", agent.ended.wait(0.2), flush=True)
app.close()
print("after the script:", repr(agent.next("ending")), flush=True)
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "after the child: False\nafter the script: ''\n"


def test_an_observed_script_goes_on_when_its_lease_is_lost_and_its_agent_has_ended(tmp_path: Path) -> None:
    script = """
attach(ends_script=ENDS)
WHAT
agent.close()
time.sleep(1)
print("it goes on", flush=True)
"""
    lost = 'agent.tell("lost", "another one has replaced it")'
    observed, _ = run(script.replace("ENDS", "False").replace("WHAT", lost), tmp_path)
    assert (observed.returncode, observed.stdout) == (0, "it goes on\n")
    assert "this script is not protected any more" in observed.stderr
    protected, _ = run(script.replace("ENDS", "True").replace("WHAT", ""), tmp_path)
    assert (protected.returncode, protected.stdout) == (EXIT_LEASE_LOST, "")


@pytest.mark.parametrize(("ends", "code"), [("True", EXIT_FAILED), ("False", 0)])
def test_a_script_that_goes_on_without_its_jvm_is_ended(tmp_path: Path, ends: str, code: int) -> None:
    done, _ = run(
        f"""
import subprocess
from py4j.protocol import Py4JNetworkError
from containers.supervision.processes import process

jvm = subprocess.Popen(["sleep", "600"])
known = tuple(process(each).id for each in (os.getpid(), jvm.pid))


class Faster(SystemClock):
    def elapsed(self):
        return super().elapsed() * 1000


class NoQueries:
    def elements(self):
        raise Py4JNetworkError("there is no answer")


app = App(spark, JobName("orders"), known, Faster(), timedelta(seconds=60))
app.start(theirs, ends_script={ends})
state.activeStreamingQueries = NoQueries
time.sleep(1)
print("it goes on", flush=True)
jvm.kill()  # and is a zombie from now on
time.sleep(600 if {ends} else 2)
""",
        tmp_path,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == "it goes on\n"
    assert done.stderr.count("the JVM of this script has ended, for example because it was killed") == 1
    assert ("the JVM has ended, and the script has not ended within 30 s: it is ended" in done.stderr) == (ends == "True")


def test_a_second_sigterm_calls_the_handler_of_the_script_while_the_queries_are_stopped(tmp_path: Path) -> None:
    done, _ = run(
        """
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))
attach()
may_stop.clear()
later(stopping, terminate)
terminate()
""",
        tmp_path,
    )
    assert done.returncode == 7, done.stderr


@pytest.mark.parametrize(("handler", "code"), [("signal.SIG_DFL", -signal.SIGTERM), ("lambda number, frame: os._exit(7)", 7)])
def test_the_first_sigterm_that_python_gets_ends_it_if_its_agent_has_had_one(tmp_path: Path, handler: str, code: int) -> None:
    """`sluice exec` makes the first one a request to stop."""
    done, _ = run(
        f"""
signal.signal(signal.SIGTERM, {handler})
attach()
may_stop.clear()
agent.tell("stop", timedelta(seconds=60), True)
stopping.wait()
terminate()
threading.Event().wait(10)
os._exit(0)
""",
        tmp_path,
    )
    assert done.returncode == code, done.stderr


def test_the_first_sigterm_after_a_request_to_stop_waits_for_the_queries(tmp_path: Path) -> None:
    done, _ = run(
        """
def end():
    terminate()
    print("batches end", flush=True)
    may_stop.set()


signal.signal(signal.SIGTERM, lambda number, frame: (print("the script ends", flush=True), os._exit(7)))
attach()
may_stop.clear()
later(stopping, end)
agent.tell("stop", timedelta(seconds=60), False)
threading.Event().wait(60)
""",
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (7, "batches end\nthe script ends\n"), done.stderr


def test_a_sigterm_during_a_stop_of_the_script_itself_waits_for_this_stop(tmp_path: Path) -> None:
    """The handler interrupts the thread that waits for the stop."""
    done, _ = run(
        """
def end():
    terminate()
    print("batches end", flush=True)
    may_stop.set()


signal.signal(signal.SIGTERM, lambda number, frame: (print("the script ends", app.stop(), flush=True), os._exit(7)))
app = attach()
may_stop.clear()
later(stopping, end)
app.stop()
os._exit(0)
""",
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (7, "batches end\nthe script ends []\n"), done.stderr


def test_a_script_whose_queries_do_not_stop_is_ended_after_the_stop_timeout(tmp_path: Path) -> None:
    done, _ = run(
        """
attach(stop_timeout=0.1)
may_stop.clear()
terminate()
threading.Event().wait(60)
os._exit(0)
""",
        tmp_path,
    )
    assert done.returncode == -signal.SIGTERM, done.stderr


def test_two_threads_that_first_ask_for_a_kafka_writer_share_its_producers(tmp_path: Path) -> None:
    """Otherwise those of the first would not be closed, and its marker not renewed. The import of pyarrow takes long."""
    done, _ = run(
        """
import gc

importing, may_import = threading.Event(), threading.Event()


class SlowImport:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "containers.attached.kafka_writer":
            importing.set()
            may_import.wait()


class Rows:
    isStreaming, dtypes = True, [("value", "string")]

    def selectExpr(self, *columns):
        writer = SimpleNamespace(option=lambda name, value: writer, foreachBatch=lambda function: function)
        return SimpleNamespace(writeStream=writer)


def write(topic):
    written.append(app.kafka_writer(Rows(), topic, {"kafka.bootstrap.servers": "127.0.0.1:1"}))


def functions(thread):
    # The functions that a thread runs now.
    frame, found = sys._current_frames().get(thread.ident), []
    while frame is not None:
        found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found


sys.meta_path.insert(0, SlowImport)
app, written = attach(), []
threads = [threading.Thread(target=write, args=(topic,)) for topic in ("counts", "totals")]
threads[0].start()
importing.wait()
threads[1].start()
for _ in range(100):  # at most a second
    if "import_module" in functions(threads[1]):
        break  # it makes another one
    threading.Event().wait(0.01)
may_import.set()
for each in threads:
    each.join()
print(len(written), sum(type(each).__name__ == "KafkaWriters" for each in gc.get_objects()))
app.close()
""",
        tmp_path,
    )
    assert done.stdout == "2 1\n", done.stderr
