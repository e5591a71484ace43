"""How a demo ends, and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import httpx
import pytest

from examples.flights.data import FlightsMissing
from examples.harness.demo import fresh, run_and_exit
from examples.harness.replay import StreamNotOurs
from tests.support.processes import WAIT_SECONDS, TooSlow, wait_for

MARK = ".a-demo"


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def ended(demo: Callable[[], bool], home: Path, keep: bool = False) -> object:
    with pytest.raises(SystemExit) as end:
        run_and_exit(demo, home, keep)
    return end.value.code


def test_an_exact_demo_exits_0_and_deletes_its_directory(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    assert ended(lambda: fresh(home, MARK).exists(), home) == 0
    assert not home.exists()


def test_an_exact_demo_keeps_its_directory_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "demo"
    assert ended(lambda: fresh(home, MARK).exists(), home, keep=True) == 0
    assert (home / MARK).exists()
    assert str(home) in capsys.readouterr().out


def test_a_demo_that_stays_serves_its_pages_until_ctrl_c(tmp_path: Path) -> None:
    served, printed = list[str](), StringIO()

    def look() -> None:
        pattern = r"^pages (http://127\.0\.0\.1:\d+/ui/) until Ctrl-C$"
        url = wait_for("the address of the pages", lambda: re.search(pattern, printed.getvalue(), re.MULTILINE))[1]
        served.append(httpx.get(url, timeout=WAIT_SECONDS).text)
        os.kill(os.getpid(), signal.SIGINT)

    home = fresh(tmp_path / "demo", MARK)
    with ThreadPoolExecutor(1) as pool, redirect_stdout(printed):
        looked = pool.submit(look)
        with pytest.raises(SystemExit) as end:
            run_and_exit(lambda: True, home, keep=False, serve_on=0)
        looked.result()
    assert end.value.code == 0
    assert "There is no job yet" in served[0]
    assert not home.exists()


def test_a_demo_that_is_not_exact_exits_1_and_leaves_its_directory(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    assert ended(lambda: not fresh(home, MARK).exists(), home) == 1
    assert (home / MARK).exists()


@pytest.mark.parametrize("error", [TooSlow("all is read: not within 5 s"), FlightsMissing(), StreamNotOurs("not ours"), OSError("disk")])
def test_a_demo_that_fails_exits_1_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    def fail() -> bool:
        raise error

    home = fresh(tmp_path / "demo", MARK)
    assert ended(fail, home) == 1
    assert str(error) in capsys.readouterr().err
    assert home.exists()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_demo_normally_with_exit_code_130(tmp_path: Path, capsys: pytest.CaptureFixture[str], sent: signal.Signals) -> None:
    cleaned = []

    def interrupted() -> bool:
        try:
            os.kill(os.getpid(), sent)
            signal.pause()
        finally:
            cleaned.append("run stopped")
        return True

    assert ended(interrupted, tmp_path) == 130
    assert cleaned == ["run stopped"]
    assert "interrupted" in capsys.readouterr().err


def test_a_directory_that_does_not_belong_to_the_demo_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / ".another-demo").touch()
    assert ended(lambda: fresh(tmp_path, MARK).exists(), tmp_path) == 1
    assert "choose another --home" in capsys.readouterr().err
    assert (tmp_path / "precious").exists()
