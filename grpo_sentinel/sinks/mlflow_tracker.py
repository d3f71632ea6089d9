"""The MLflow client inside the child process: metrics in batches of at most 1000, findings as tags.

    run      the one named by the settings, or one of our own, found again by its tags after a restart
    metric   "policy/loss/rank-0" at the optimizer step; NaN and infinities go as strings, which the client does
    finding  tag "grpo_sentinel.finding.<rule>"
    request  tag "grpo_sentinel.request"
    incident artifacts under incidents/<id>/: the bundle's folder

A repeated point is the same point for MLflow (key, step, time, value), so a batch may be sent again after any failure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from grpo_sentinel.sinks.child import Line, Report, TrackerDown, not_sent, numbers, plain_text
from grpo_sentinel.sinks.tensorboard import tag_of

MAX_METRICS = 1000  # the server refuses more in one request
MAX_TAGS = 100
MAX_KEY = 250
MAX_TAG = 500
_NOT_A_KEY = re.compile(r"[^A-Za-z0-9_\-. :/]")

RunKey = tuple[str, str]


class MlflowTracker:
    """Metrics and tags; one bounded try a call, the rest is up to who calls."""

    def __init__(self, settings: Mapping[str, Any], report: Report) -> None:
        self._settings, self._report = settings, report
        self._client = MlflowClient()
        self._runs: dict[RunKey, str] = {}
        self._refused = False

    def take(self, lines: Sequence[Line]) -> None:
        """Send lines, by run. Raises `TrackerDown` when the server cannot be reached; a retry doubles nothing."""
        runs: dict[RunKey, list[Line]] = {}
        for line in lines:
            runs.setdefault((line["run_id"], line["node"]), []).append(line)
        refused, self._refused = self._refused, False
        try:
            for key, own in runs.items():
                self._send(self._run(key), own)
        except MlflowException as error:
            raise TrackerDown(f"MLflow: {plain_text(error)}") from error
        if refused and not self._refused:
            self._report({"problem": ""})

    def _send(self, run_id: str, lines: Sequence[Line]) -> None:
        metrics = [metric for line in lines if line["type"] == "metrics" for metric in metrics_of(line)]
        tags = [tag_of_finding(line) for line in lines if line["type"] == "finding"]
        tags += [tag_of_request(line) for line in lines if line["type"] == "request"]
        for start in range(0, len(metrics), MAX_METRICS):
            self._log(run_id, metrics=metrics[start : start + MAX_METRICS])
        for start in range(0, len(tags), MAX_TAGS):
            self._log(run_id, tags=tags[start : start + MAX_TAGS])
        for line in lines:
            if line["type"] == "incident":
                self._attach(run_id, line)

    def _attach(self, run_id: str, line: Line) -> None:
        """Upload a bundle's folder; sent again it replaces itself."""
        try:
            folder = os.path.isdir(line["path"])
            send = self._client.log_artifacts if folder else self._client.log_artifact  # a folder or a tar.gz
            send(run_id, line["path"], key(f"incidents/{line['incident_id']}"))
        except (OSError, MlflowException) as error:
            status = error.get_http_status_code() if isinstance(error, MlflowException) else 0
            if os.path.exists(line["path"]) and status not in (400, 403, 404, 413, 422, 501):
                raise TrackerDown(f"MLflow: {plain_text(error)}") from error
            self._refused = True
            self._report(not_sent(line, error))

    def _log(self, run_id: str, **what: Any) -> None:
        try:
            self._client.log_batch(run_id, **what)
        except MlflowException as error:
            if error.get_http_status_code() not in (400, 404, 409, 422) or "INTERNAL" in str(error.error_code):
                raise
            self._refused = True
            lost = sum(map(len, what.values()))
            self._report(
                {"lost": lost, "reason": "rejected", "problem": f"MLflow refused a batch: {plain_text(error)}"}
            )

    def _run(self, key: RunKey) -> str:
        if key not in self._runs:
            self._runs[key] = self._settings["run_id"] or self._found(*key)
        return self._runs[key]

    def _found(self, run_id: str, node: str) -> str:
        """Find our run of an earlier process, else make one."""
        experiment = self._experiment()
        tags = {"grpo_sentinel.run_id": plain_tag(run_id), "grpo_sentinel.node": plain_tag(node)}
        clauses = [f"tags.`{name}` = '{value}'" for name, value in tags.items()]
        known = self._client.search_runs([experiment], " and ".join(clauses), max_results=1)
        if known:
            self._client.update_run(known[0].info.run_id, status="RUNNING")  # it may have been marked as finished
            return str(known[0].info.run_id)
        if self._settings["parent_run_id"]:
            tags["mlflow.parentRunId"] = self._settings["parent_run_id"]
        run = self._client.create_run(experiment, tags=tags, run_name=f"sentinel {plain_tag(run_id)}"[:200])
        return str(run.info.run_id)

    def _experiment(self) -> str:
        name = self._settings["experiment"]
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))

    def close(self) -> None:
        """Mark our own runs as finished; the trainer's is left to the trainer."""
        if self._settings["run_id"]:
            return
        for run_id in self._runs.values():
            try:
                self._client.set_terminated(run_id)
            except MlflowException as error:
                self._report({"problem": f"MLflow: {plain_text(error)}"})
                return


def metrics_of(line: Line) -> list[Metric]:
    """Give the values of one line as metrics."""
    prefix = "eval/" if line["eval"] else ""
    suffix = "" if line["rank"] is None else f"/rank-{line['rank']}"
    wall_ms, step = line["wall_ns"] // 1_000_000, line["step"]
    values = numbers(line["values"])
    return [Metric(key(prefix + tag_of(name) + suffix), value, wall_ms, step) for name, value in values.items()]


def key(text: str) -> str:
    """Make a key that MLflow takes: its characters, at most 250, and a path that is its own normal form."""
    parts = [part.strip() for part in _NOT_A_KEY.sub("_", text).split("/")]
    safe = "/".join("_" if part in (".", "..") else part for part in parts if part)
    return safe if len(safe) <= MAX_KEY else safe[: MAX_KEY // 2] + safe[-(MAX_KEY // 2) :]


def plain_tag(text: str) -> str:
    """Make a tag's value that stands in a search without quotation."""
    return _NOT_A_KEY.sub("_", text)[:200]


def tag_of_finding(finding: Line) -> RunTag:
    """Say in one tag how a rule stands."""
    ranks = ", ".join(map(str, finding["ranks"])) or "not known"
    text = (
        f"{finding['state']}, {finding['severity']}, since step {finding['onset_step']}, rank {ranks}: "
        f"{finding['message']}"
    )
    return RunTag(key(f"grpo_sentinel.finding.{finding['rule']}"), text[:MAX_TAG])


def tag_of_request(line: Line) -> RunTag:
    """Say in one tag how the newest request to checkpoint or halt stands."""
    text = f"{line['action']} by {line['requested_by']}: {line['state']}, step {line['step']} {line['detail']}"
    return RunTag("grpo_sentinel.request", text[:MAX_TAG])
