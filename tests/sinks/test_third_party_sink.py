"""The example sink outside the tree: installed as a package, found by its entry point, fed by the sidecar's own code."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bad_sinks import eventually
from sentinel_batches import batch, finding, record

from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.parts import Sinks

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "third_party_sink"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the package was installed to."""
    target = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*argv, "--target", target, EXAMPLE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def sinks(installed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    made = []

    def make(external):
        body = {"sinks": {"external": external, "history": {"enabled": False}, "prometheus": {"enabled": False}}}
        made.append(Sinks(Config.model_validate(body), tmp_path, "node-a", SystemClock()))
        return made[-1]

    yield make
    for one in made:
        one.close(5)


def test_it_gets_what_the_configuration_gives_it_and_every_batch(sinks, tmp_path):
    path = tmp_path / "deep" / "findings.csv"
    for _ in range(2):  # the second sidecar goes on with the file
        one = sinks({"csv_findings": {"path": str(path)}})
        one.publish(batch(record(1)))
        one.publish(batch(findings=(finding(), finding("other", finding_id="o", message='say "x",\ny'))))
        eventually(lambda one=one: one.numbers()["sink_written_total[sink=csv_findings]"] == 2, "both were written")
        one.close(5)
    rows = list(csv.reader(path.open(newline="")))
    assert [row[6] for row in rows] == ["rule", "nan_gradient", "other", "nan_gradient", "other"]
    assert rows[2][9] == 'say "x",\ny'
    assert one.numbers()["sink_csv_findings_lines_total"] == 2


def test_settings_that_it_does_not_take_are_said_in_its_own_words_and_the_rest_goes_on(sinks):
    one = sinks({"csv_findings": {}})
    eventually(one.problems, "the problem is said")
    assert "sinks.external.csv_findings.path: expected a file, got None" in one.problems()[0]


def test_a_name_that_no_package_offers_is_said_with_those_that_are(sinks):
    one = sinks({"csv_fundings": {}})
    eventually(one.problems, "the problem is said")
    assert "there is no sink named 'csv_fundings'" in one.problems()[0]
    assert "csv_findings" in one.problems()[0]


@pytest.mark.slow
def test_the_command_line_runs_with_it(installed, tmp_path):
    config = tmp_path / "sentinel.yaml"
    config.write_text(
        f"http: {{enabled: false}}\nsinks:\n  external:\n    csv_findings: {{path: {tmp_path / 'out.csv'}}}\n"
    )
    argv = [sys.executable, "-m", "grpo_sentinel.cli", "run", "--once", "--config", config]
    environment = {**os.environ, "PYTHONPATH": f"{installed}:{EXAMPLE.parents[1]}"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.csv").read_text().startswith("wall_ns,run_id,node")
