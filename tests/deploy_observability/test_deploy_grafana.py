"""The dashboards: Grafana's own types, PromQL over metrics that exist, and data in every panel from a real Prometheus."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections import Counter

import jsonschema
import pytest
import yaml
from metric_names import OF_PROMETHEUS, exported, filled, used
from real_servers import DEPLOY, ask, program, prometheus
from recording import openmetrics

GRAFANA = DEPLOY / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
SCHEMA = json.loads((DEPLOY.parent / "tests" / "deploy_observability" / "grafana_schema.json").read_text())
OF_THE_DATA_SOURCE = (
    "target",
    "titleFormat",
    "textFormat",
    "tagKeys",
)  # open in Grafana, closed in its TypeScript types
VARIABLES = {
    "run_id": "demo",
    "node": ".*",
    "rank": ".*",
    "datasource": "x",
    "__rate_interval": "30s",
    "__interval": "15s",
}
NOT_IN_THE_RECORDING = {
    "memory_cuda": "made on a machine without CUDA",
    "policy_sampling": "its rollout engine is the trainer's own model",
    "policy_kl_k3": "it has no reference model (beta = 0)",
    "nonfinite_values": "every value of it is finite",
}


def dashboards():
    return [json.loads(path.read_text()) for path in FILES]


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions():
    for dashboard in dashboards():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield dashboard["title"], panel["title"], target["expr"]
        for annotation in dashboard["annotations"]["list"]:
            yield dashboard["title"], "annotations", annotation["target"]["expr"]


def errors(kind, body):
    return [
        f"{list(e.absolute_path)}: {e.message}"
        for e in jsonschema.Draft7Validator(SCHEMA[kind]).iter_errors({"it": body})
    ]


def test_there_is_a_dashboard_for_each_question():
    assert {path.stem.removeprefix("grpo-sentinel-") for path in FILES} == {
        "overview", "ranks", "gradients", "rewards", "devices", "incidents", "fleet",
    }  # fmt: skip


@pytest.mark.parametrize("dashboard", dashboards(), ids=[path.stem for path in FILES])
def test_a_dashboard_is_one_by_grafanas_own_types(dashboard):
    body = copy.deepcopy(dashboard)
    for annotation in body["annotations"]["list"]:
        for key in OF_THE_DATA_SOURCE:
            assert annotation.pop(key)
    assert errors("dashboard", body) == []
    for panel in panels(dashboard):
        assert errors(panel["type"], panel["options"]) == [], panel["title"]


def test_the_gate_refuses_what_is_no_dashboard():
    body = dashboards()[0]
    body["panels"][1]["gridPos"]["w"] = "wide"
    assert errors("dashboard", body)


@pytest.mark.parametrize("dashboard", dashboards(), ids=[path.stem for path in FILES])
def test_panels_have_ids_titles_and_places_of_their_own(dashboard):
    assert [count for count in Counter(panel["id"] for panel in dashboard["panels"]).values() if count > 1] == []
    assert [title for title, count in Counter(panel["title"] for panel in panels(dashboard)).items() if count > 1] == []
    taken = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells


@pytest.mark.parametrize("dashboard", dashboards(), ids=[path.stem for path in FILES])
def test_every_query_has_a_ref_and_asks_the_chosen_data_source(dashboard):
    names = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert names[0] == "datasource"
    for panel in panels(dashboard):
        refs = [target["refId"] for target in panel["targets"]]
        assert refs
        assert len(set(refs)) == len(refs)
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            for name in re.findall(r"\$(\w+)", target["expr"]):
                assert name in names or name.startswith("__"), f"{panel['title']}: ${name}"


def test_every_expression_is_promql_over_metrics_that_are_exported():
    known = exported() | OF_PROMETHEUS
    found = list(expressions())
    assert len(found) > 100
    for dashboard, panel, expression in found:
        names = used(filled(expression, VARIABLES))
        assert names, f"{dashboard}, {panel}"
        assert names <= known, f"{dashboard}, {panel}: {names - known}"


def test_variables_ask_for_labels_of_metrics_that_are_exported():
    for dashboard in dashboards():
        for variable in dashboard["templating"]["list"][1:]:
            metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]).groups()
            assert metric in exported()
            assert label == variable["name"]


def test_the_files_are_what_the_tables_say():
    if importlib.util.find_spec("grafana_foundation_sdk") is None:
        pytest.skip("needs grafana-foundation-sdk (Python 3.11 or newer)")
    script = DEPLOY.parent / "scripts" / "build_dashboards.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_provisioning_names_the_folder_and_one_data_source():
    (source,) = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "grpo-sentinel.yaml").read_text())[
        "providers"
    ]
    assert (source["type"], provider["type"]) == ("prometheus", "file")
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]


@pytest.fixture(scope="session")
def backfilled(tmp_path_factory):
    """A real Prometheus that holds the recorded run."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    text, first, last = openmetrics(time.time() - 3600)
    (folder / "run.om").write_text(text)
    argv = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", folder / "run.om", folder / "tsdb"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (folder / "prometheus.yml").write_text("global: {}\n")
    with prometheus(folder / "prometheus.yml", folder / "tsdb", None, "--query.lookback-delta=3s") as url:
        yield url, first, last


@pytest.mark.slow
def test_every_panel_returns_data_from_a_recorded_run(backfilled):
    url, first, last = backfilled
    empty = []
    for dashboard, panel, expression in expressions():
        query = filled(expression, VARIABLES)
        if not ask(url, "query_range", query=query, start=first, end=last + 1, step=2):
            excused = any(f"grpo_sentinel_{part}" in expression for part in NOT_IN_THE_RECORDING)
            if not excused:
                empty.append(f"{dashboard}, {panel}: {query}")
    assert empty == []
    for dashboard in dashboards():
        for panel in panels(dashboard):
            parts = [t["expr"] for t in panel["targets"]]
            if all(any(f"grpo_sentinel_{part}" in one for part in NOT_IN_THE_RECORDING) for one in parts):
                assert "Only" in panel["description"] or "Nothing" in panel["description"], panel["title"]
