"""A job on Spark as its users watch it: on the web pages, in a real browser, and in a real Prometheus, through its growth, a kill, a
restore and a drain. Secret texts are planted wherever a container reads secrets; they appear in no log, answer, page, metric, checkpoint
or process list. The steps share their processes, so they run in order.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, expect

from containers.supervision.scratch import session_members
from tests.processes.stage import Stage, stage
from tests.support.browsers import chromium
from tests.support.canaries import answers, assert_absent, command_line, output_of, planted
from tests.support.coordinators import Container
from tests.support.processes import wait_for
from tests.support.servers import prometheus

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "sluice.json").read_text())
PIZZA = json.loads((DEPLOY / "grafana" / "pizza-rushes.json").read_text())

JOB = """
from pathlib import Path

from pyspark.sql import functions as F

from sluice import Job

job = Job("toy")
numbers = job.input("numbers")
middle = job.intermediate("middle", partitions=2)
out = job.output("out")
failed = Path(__file__).with_name("has-failed")


@job.stage(reads=numbers, writes=middle)
def first(task):
    at = "timestamp_seconds(cast(cast(value as string) as bigint) + 1700000000) at"
    return task.write(task.read(numbers).selectExpr("cast(value as string) v", at), middle, key="v", value="v", event_time="at")


@job.stage(reads=middle, writes=out)
def counted(task):
    assert task.config["service.password"].endswith("-service")
    if not failed.exists():
        failed.touch()
        raise RuntimeError("unlucky")
    at = (F.col("value").cast("string").cast("bigint") + 1_700_000_000).cast("timestamp").alias("at")
    rows = task.read(middle).select(at).withWatermark("at", "10 seconds")
    return task.write(rows.groupBy(F.window("at", "1 minute")).count(), out)
"""
"""The second stage fails at its first start. Then the error is in the logs, the status and the API."""

CONFIG = {"spark.hadoop.fs.s3a.secret.key": "secret:env:CANARY_OF_SPARK", "service.password": "secret:env:CANARY_OF_THE_JOB"}
VARIABLES = {"$__rate_interval": "20s", "$job": ".+", "$stage": ".+", "$task": ".+"}
GENEROUS = 600.0
PATIENCE = GENEROUS * 1000
"""Milliseconds until a page must show something."""


@dataclass(slots=True)
class Watched:
    """A coordinator that needs tokens, the job, two browsers and a Prometheus that watch it."""

    job: Stage
    viewer: Page
    operator: Page
    api: httpx.Client
    secrets: dict[str, str]
    shown: list[str] = field(default_factory=list)
    """Outputs in which no secret may be."""
    container: Container | None = None

    def start(self) -> Container:
        intervals = {"SLUICE_TRIGGER_SECONDS": "0.5", "SLUICE_COMMIT_INTERVAL_SECONDS": "1", "SLUICE_RESTART_DELAY_SECONDS": "0.1"}
        settings: dict[str, Any] = {**self.secrets, **intervals, "SLUICE_STATE_DIR": str(self.job.root / "disk")}
        self.container = self.job.start_container(**settings)
        return self.container

    def both(self) -> tuple[Page, Page]:
        return self.viewer, self.operator

    def request(self, path: str, **query: Any) -> Any:
        answer = self.api.get(f"/api/v1/{path}", params=query).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def values(self, expression: str) -> dict[tuple[str, ...], float]:
        """The present values of an expression, by their labels' values."""
        found = self.request("query", query=expression)["result"]
        return {tuple(value for _, value in sorted(each["metric"].items())): float(each["value"][1]) for each in found}

    def without_data(self, expressions: list[str]) -> list[str]:
        """The expressions that find nothing, or no number."""
        return [each for each in expressions if not [value for value in self.values(each).values() if value == value]]


def configuration(directory: Path, coordinator: str, tokens: dict[str, str]) -> Path:
    """The configuration in deploy/prometheus, with the coordinator's address, without TLS, and with short intervals."""
    shutil.copytree(DEPLOY / "prometheus", directory, dirs_exist_ok=True)
    for name, text in tokens.items():
        (directory / name).write_text(text)
    file = directory / "secure.yml"
    text = file.read_text().replace("https://", "http://").replace("coordinator:8180", coordinator).replace(" 15s", " 2s")
    assert text.count(coordinator) == 2
    config = yaml.safe_load(text.replace("/run/sluice", str(directory)))
    scraped, listed = config["scrape_configs"]
    for each in (scraped, *listed["http_sd_configs"]):
        del each["tls_config"]
    del scraped["scheme"]
    file.write_text(yaml.safe_dump(config))
    return file


def token(job: Stage, role: str) -> str:
    made = job.http.post("/tokens", json={"name": role, "roles": [role]}).raise_for_status().json()
    return str(made["token"])


def logged_in(browser: Browser, job: Stage, role: str) -> Page:
    """A browser that has logged in with a new token of this role, at the page of the jobs."""
    page = browser.new_context(base_url=job.url).new_page()
    page.set_default_timeout(PATIENCE)
    page.goto("/ui/")
    page.get_by_label("Token").fill(token(job, role))
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#connection")).to_have_text("live", timeout=PATIENCE)
    return page


def act(page: Page, button: Locator, perform: str) -> Locator:
    """Open the dialog of an action, and perform it. Returns the dialog."""
    button.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("At a terminal: sluice")
    dialog.get_by_role("button", name=perform).click()
    return dialog


def secrets(root: Path) -> dict[str, str]:
    """Settings of a container with secrets: in files, and in variables."""
    kafka, metrics = root / "client.properties", root / "metrics.token"
    kafka.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule "
        f'required username="u" password="{planted("kafka")}";\n'
    )
    metrics.write_text(planted("metrics"))
    return {
        "SLUICE_KAFKA_PROPERTIES": str(kafka),
        "SLUICE_METRICS_TOKEN_FILE": str(metrics),
        "SLUICE_JVM_LOG": str(root / "jvm.log"),
        "SLUICE_LOG_LEVEL": "DEBUG",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": planted("s3"),
        "AWS_SESSION_TOKEN": planted("session"),
        "CANARY_OF_SPARK": planted("spark"),
        "CANARY_OF_THE_JOB": planted("service"),
    }


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("watched")
    (root / "toy").mkdir()
    with stage(root / "toy", JOB) as job, chromium() as browser:
        job.environment |= {"SLUICE_AUTHENTICATION": "true", "SLUICE_FIRST_TOKEN_FILE": str(root / "token")}
        job.environment["SLUICE_PARTITION_MONITOR_SECONDS"] = "1"
        job.log.create("numbers", 2)
        job.start_coordinator()
        job.http.headers["Authorization"] = f"Bearer {(root / 'token').read_text().strip()}"
        job.environment["SLUICE_TOKEN"] = token(job, "agent")
        job.deploy(config=CONFIG)
        tokens = {"token": token(job, "metrics"), "metrics-token": planted("metrics")}
        config = configuration(root / "prometheus", f"127.0.0.1:{job.port}", tokens)
        with prometheus(root / "prometheus", config) as url, httpx.Client(base_url=url, timeout=GENEROUS) as api:
            yield Watched(job, logged_in(browser, job, "viewer"), logged_in(browser, job, "operator"), api, secrets(root))


def substituted(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def of_the_toy(expression: str) -> str:
    """An expression of the dashboard of the pizza example, for the job and the stages that run here."""
    for theirs, ours in (("pizza-rushes", "toy"), ('stage="route"', 'stage="first"'), ('stage="rushes"', 'stage="counted"')):
        expression = expression.replace(theirs, ours)
    return substituted(expression)


def panels() -> list[dict[str, Any]]:
    return [each for each in DASHBOARD["panels"] if each["type"] != "row"]


def counters_agree(watched: Watched) -> bool:
    return watched.values("sum(sluice_stage_batch_duration_seconds_count)") == watched.values("sum(sluice_stage_batches_total)")


class TestWatchedJob:
    def test_the_first_batches_appear_on_the_pages(self, watched: Watched) -> None:
        for page in watched.both():
            page.get_by_role("link", name="toy", exact=True).click()
            expect(page.locator("#problems")).to_contain_text("0 of 1 containers are live")
        watched.start()
        watched.job.feed(20)
        for page in watched.both():
            expect(page.locator("#head")).to_contain_text("RUNNING", timeout=PATIENCE)
            for partition in (0, 1):
                expect(page.locator(f"#task-Partition_20{partition}")).to_contain_text("lag 0", timeout=PATIENCE)
            expect(page.locator("#stages")).to_contain_text("counted")

    def test_prometheus_finds_the_coordinator_and_the_container_with_labels_for_its_job_run_and_slot(self, watched: Watched) -> None:
        def up() -> bool:
            found = watched.request("targets", state="active")["activeTargets"]
            return sorted((each["labels"]["job"], each["health"]) for each in found) == [
                ("sluice-containers", "up"),
                ("sluice-coordinator", "up"),
            ]

        wait_for("two targets that are up", up, GENEROUS)
        (labels,) = (each["metric"] for each in watched.request("query", query="sluice_container_tasks_owned")["result"])
        (incarnation,) = watched.job.detail().incarnations
        assert labels == {
            "__name__": "sluice_container_tasks_owned",
            "job": "sluice-containers",
            "instance": incarnation.metrics_address,
            "sluice_job": "toy",
            "run": watched.job.run_id,
            "processor": "0",
            "container": incarnation.execution_container_id,
        }

    def test_every_panel_of_the_dashboards_has_data(self, watched: Watched) -> None:
        expressions = [substituted(target["expr"]) for panel in panels() for target in panel["targets"]]
        assert len(expressions) > 40
        expressions += [of_the_toy(target["expr"]) for panel in PIZZA["panels"] for target in panel.get("targets", [])]
        missing: list[str] = []

        def all_found() -> bool:
            """While the job always has work, and the coordinator refuses requests."""
            watched.job.feed(20)
            watched.job.http.get("/runs/none")
            missing[:] = watched.without_data(expressions)
            return not missing

        try:
            wait_for("data for every panel", all_found, GENEROUS, every=1)
        finally:
            assert missing == []

    def test_every_variable_of_the_dashboard_has_values(self, watched: Watched) -> None:
        found = {}
        for variable in DASHBOARD["templating"]["list"]:
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
                assert match is not None
                series = watched.request("series", **{"match[]": substituted(match[1])})
                found[variable["name"]] = {each[match[2]] for each in series}
        assert found == {"job": {"toy"}, "stage": {"first", "counted"}, "task": {"Partition 0", "Partition 1"}}

    def test_every_alert_is_evaluated_without_an_error(self, watched: Watched) -> None:
        def rules() -> list[dict[str, Any]]:
            return [rule for group in watched.request("rules")["groups"] for rule in group["rules"]]

        assert len(rules()) == len(re.findall(r"- alert:", (DEPLOY / "prometheus" / "rules.yml").read_text()))
        wait_for("an evaluation of each", lambda: all(rule["health"] != "unknown" for rule in rules()), GENEROUS)
        assert {rule["name"]: rule.get("lastError") for rule in rules() if rule["health"] != "ok"} == {}

    def test_the_metrics_agree_with_what_the_job_has_read(self, watched: Watched) -> None:
        job = watched.job
        query = "sum by (stage) (sluice_stage_input_rows_total)"
        fed = float(sum(job.log.latest("numbers").values()))
        wait_for("the rows of both stages", lambda: watched.values(query) == {("first",): fed, ("counted",): fed}, GENEROUS)
        wait_for("equal counters of batches", lambda: counters_agree(watched), GENEROUS)
        wait_for("nothing left to read", lambda: set(watched.values("sluice_job_lag_records").values()) == {0.0}, GENEROUS)
        idle = lambda: all(s.metrics and s.metrics.rows == 0 for t in job.detail().tasks for s in t.stages)  # noqa: E731
        wait_for("measures of idle stages", idle, GENEROUS)
        assert {s.metrics.lag for t in job.detail().tasks for s in t.stages if s.metrics} == {0}

    def test_the_pages_of_a_version_for_a_grown_input_show_which_tasks_read_the_new_partitions(self, watched: Watched) -> None:
        watched.job.log.grow("numbers", 4)
        for page in watched.both():
            expect(page.locator("#timeline")).to_contain_text("version 2 of the job model came into force", timeout=PATIENCE)
            expect(page.locator("#graph")).to_contain_text("4 partitions", timeout=PATIENCE)
        watched.job.feed(20)
        watched.viewer.get_by_role("link", name="version 2 of the job model came into force").click()
        expect(watched.viewer.get_by_role("heading", name="Compared with version 1")).to_be_visible()
        expect(watched.viewer.locator("#version")).to_contain_text("log.numbers partition 3 is read by Partition 1")
        watched.viewer.go_back()
        for partition in (0, 1):
            expect(watched.viewer.locator(f"#task-Partition_20{partition}")).to_contain_text("lag 0", timeout=PATIENCE)

    def test_after_kill_9_the_agent_frees_the_tasks_and_the_pages_show_the_problem_with_a_remedy(self, watched: Watched) -> None:
        assert watched.container is not None
        execution_id, agent = watched.container
        own = psutil.Process(agent.pid)
        commands = [command_line(each) for each in [own, *own.children(recursive=True)]]
        assert any(each.partition(" ")[0].endswith("java") for each in commands)
        watched.shown += commands
        address = watched.job.incarnation(execution_id).metrics_address
        metrics = httpx.get(f"http://{address}/metrics", headers={"Authorization": f"Bearer {planted('metrics')}"}, timeout=GENEROUS)
        assert "sluice_" in metrics.text
        watched.shown.append(metrics.text)

        driver = watched.job.driver_of(agent)
        driver.kill()
        assert agent.wait(GENEROUS) == 1
        assert session_members(driver.pid) == []
        for page in watched.both():
            expect(page.locator("#timeline")).to_contain_text(f"container {execution_id} exited with code 1", timeout=PATIENCE)
            expect(page.locator("#problems")).to_contain_text("SIGKILL", timeout=PATIENCE)
            expect(page.locator("#problems")).to_contain_text("Read the log of that container")
        gone = watched.job.incarnation(execution_id)
        assert (gone.state, gone.exit_code) == ("EXITED", 1)
        assert "SIGKILL" in gone.reason
        assert [task.holder for task in watched.job.detail().tasks] == [None, None]

    def test_the_series_of_an_ended_container_end_and_the_lag_of_its_tasks_is_still_reported(self, watched: Watched) -> None:
        watched.job.feed(40)
        wait_for("the end of its series", lambda: not watched.values('{__name__=~"sluice_stage_.+|sluice_container_.+"}'), GENEROUS)
        assert watched.job.http.get("/prometheus/targets").json() == []
        lag = 'sluice_job_lag_records{stage="first"}'

        def behind() -> int:
            return sum(s.lag or 0 for t in watched.job.detail().tasks for s in t.stages if s.stage == "first")

        wait_for("what the stage is behind", lambda: behind() >= 40 and set(watched.values(lag).values()) == {behind()}, GENEROUS)

    def test_the_viewer_may_not_restore_a_snapshot_and_the_operator_may(self, watched: Watched) -> None:
        for page in watched.both():
            page.get_by_role("link", name="snapshots and pins").click()
            expect(page.get_by_role("heading", name="Retained snapshots")).to_be_visible()
        dialog = act(watched.viewer, watched.viewer.get_by_role("button", name="Restore…").first, "Restore")
        expect(dialog).to_contain_text("The action failed")
        expect(dialog).to_contain_text("one of the roles admin, deployer, operator is needed")
        watched.viewer.keyboard.press("Escape")
        dialog = act(watched.operator, watched.operator.get_by_role("button", name="Restore…").first, "Restore")
        expect(dialog).to_contain_text("The next owner of the task restores this snapshot")
        watched.operator.keyboard.press("Escape")
        expect(watched.operator.locator("#snapshots")).to_contain_text("restored next", timeout=PATIENCE)
        for page in watched.both():
            page.get_by_role("link", name="toy", exact=True).click()
            expect(page.locator("#timeline")).to_contain_text("operator requested a restore, on the page", timeout=PATIENCE)
        watched.start()
        for partition in range(2):
            expect(watched.viewer.locator(f"#task-Partition_20{partition} code")).to_be_visible(timeout=PATIENCE)
            expect(watched.viewer.locator(f"#task-Partition_20{partition}")).to_contain_text("lag 0", timeout=PATIENCE)
        expect(watched.viewer.locator("#problems")).to_contain_text("There are no problems", timeout=PATIENCE)

    def test_the_viewer_may_not_drain_the_job_and_sees_the_drain_of_the_operator_end(self, watched: Watched) -> None:
        dialog = act(watched.viewer, watched.viewer.get_by_role("button", name="Drain…"), "Drain toy")
        expect(dialog).to_contain_text("one of the roles admin, deployer, operator is needed")
        watched.viewer.keyboard.press("Escape")
        dialog = act(watched.operator, watched.operator.get_by_role("button", name="Drain…"), "Drain toy")
        dialog.get_by_role("link", name="Show the result").click()
        expect(watched.operator.locator("#drain")).to_contain_text("DRAINED", timeout=PATIENCE)
        for phase in ("STOPPING", "FLUSHING", "COMMITTING"):
            expect(watched.operator.locator("#drain")).to_contain_text(phase)
        expect(watched.viewer.locator("#timeline")).to_contain_text("the drain ended as DRAINED", timeout=PATIENCE)
        expect(watched.viewer.locator("#timeline")).to_contain_text("operator requested a drain, on the page", timeout=PATIENCE)
        expect(watched.viewer.get_by_role("button", name="Remove…")).to_be_visible(timeout=PATIENCE)
        assert watched.container is not None
        assert watched.container.process.wait(GENEROUS) == 0

    def test_no_secret_of_the_container_appears_in_any_output(self, watched: Watched) -> None:
        job = watched.job
        shown = [*watched.shown, answers(job.http, job.run_id, job="toy"), *(page.content() for page in watched.both())]
        admin = str(job.http.headers["Authorization"]).removeprefix("Bearer ")
        shown.append(output_of("status", "toy", "--coordinator", job.url, SLUICE_TOKEN=admin))
        logs = [*job.root.glob("*.log"), Path(watched.secrets["SLUICE_JVM_LOG"])]
        shown += [file.read_text(errors="replace") for file in logs]
        checkpoints = [file for file in (job.root / "disk").rglob("*") if file.is_file()]
        assert checkpoints
        shown += [file.read_bytes().decode(errors="replace") for file in checkpoints]
        assert "unlucky" in "".join(shown)
        assert_absent("\n".join(shown))
