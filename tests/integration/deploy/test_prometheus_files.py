"""The files in deploy/prometheus and deploy/grafana, without servers. tests/processes has the tests with a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.servers import NotInstalled

HERE = Path(__file__).parent
DEPLOY = HERE.parents[2] / "deploy"
ALERTS = HERE / "alerts.yml"
"""Series under which each alert fires."""
DASHBOARDS = ("pizza-rushes.json", "sluice.json")


@pytest.mark.parametrize(
    "what",
    [
        ["check", "config", "prometheus.yml"],
        ["check", "config", "secure.yml"],
        ["check", "rules", "rules.yml"],
        ["test", "rules", ALERTS.name],
    ],
    ids=" ".join,
)
def test_promtool_reports_no_error(tmp_path: Path, what: list[str]) -> None:
    run_promtool(tmp_path, what)


def run_promtool(tmp_path: Path, what: list[str]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        raise NotInstalled("Prometheus")
    shutil.copytree(DEPLOY / "prometheus", tmp_path, dirs_exist_ok=True)
    shutil.copy(ALERTS, tmp_path)
    _replace_identity(tmp_path)
    done = subprocess.run([promtool, *what], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _replace_identity(directory: Path) -> None:
    """Files in place of those that Compose mounts at /run/sluice: promtool checks that they exist."""
    for name in ("ca.crt", "token", "metrics-token"):
        (directory / name).touch()
    for name in ("prometheus.yml", "secure.yml"):
        config = directory / name
        config.write_text(config.read_text().replace("/run/sluice", str(directory)))


def test_every_alert_has_a_test_in_which_it_fires_a_description_and_a_runbook() -> None:
    rules = [rule for group in yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"] for rule in group["rules"]]
    fired = set(re.findall(r'alertname="(\w+)"', ALERTS.read_text()))
    assert {rule["alert"] for rule in rules} == fired
    for rule in rules:
        assert {*rule["annotations"]} == {"summary", "description", "runbook_url"}
        assert rule["labels"]["severity"] in {"page", "ticket"}


def test_every_alert_links_to_its_section_in_the_docs_and_every_section_is_about_an_alert() -> None:
    rules = [rule for group in yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"] for rule in group["rules"]]
    page = (DEPLOY.parent / "docs" / "alerts.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    assert sections.keys() == {rule["alert"] for rule in rules}
    for rule in rules:
        alert, severity = rule["alert"], rule["labels"]["severity"]
        assert rule["annotations"]["runbook_url"] == f"{{{{ $externalLabels.sluice_docs }}}}/alerts.html#{alert.lower()}"
        assert re.findall(r"^\*\*(.+?)\*\*", sections[alert], re.M) == ["Means", "Look at", "Do"], alert
        assert f"**Means** ({severity}): " in sections[alert], alert


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_panels_of_a_dashboard_do_not_overlap_and_use_one_data_source(name: str) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / name).read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    sources = {json.dumps(each["datasource"]) for panel in dashboard["panels"] for each in [*panel.get("targets", [])]}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}


def test_the_dashboard_of_the_example_reads_only_metrics_of_the_dashboard_that_is_tested_with_a_real_prometheus() -> None:
    def metrics(name: str) -> set[str]:
        panels = json.loads((DEPLOY / "grafana" / name).read_text())["panels"]
        return {each for panel in panels for target in panel.get("targets", []) for each in re.findall(r"sluice_\w+(?={)", target["expr"])}

    assert {"sluice_stage_state_rows", "sluice_job_state"} <= metrics("pizza-rushes.json") <= metrics("sluice.json")


def test_grafana_is_provisioned_with_the_data_source_and_the_folder_of_the_dashboard() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "sluice.yml").read_text())["providers"]
    mounted = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]["grafana"]["volumes"]
    for name in DASHBOARDS:
        assert f"./deploy/grafana/{name}:{provider['options']['path']}/{name}:ro" in mounted
    assert "./deploy/grafana/provisioning:/etc/grafana/provisioning:ro" in mounted


RESTARTS = """
rule_files: [rules.yml]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: 'up{job="sluice-coordinator",instance="c"}'
        values: "1x240"
      # A slot has the 100 ended containers that HistoryPolicy keeps. One more ends, and prune_history deletes the oldest.
      - series: 'sluice_job_containers{sluice_job="toy",state="EXITED"}'
        values: "100x80 101x60 100x100"
    promql_expr_test:
      - expr: count by (alertname) (ALERTS{alertstate="firing"})
        eval_time: 36m
        exp_samples: []
"""


def test_pruning_the_history_of_a_slot_is_not_a_restart(tmp_path: Path) -> None:
    (tmp_path / "restarts.yml").write_text(RESTARTS)
    run_promtool(tmp_path, ["test", "rules", "restarts.yml"])
