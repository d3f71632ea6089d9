"""The W&B client inside the child process: one run of our own for each watched run, in the trainer's group.

    run      job_type "sentinel", group = the trainer's run, x axis "sentinel/step"
    row      {"sentinel/step": 12, "policy/loss/rank-0": 0.5, "policy/loss/rank-1": 0.6}
    finding  run.alert(...), and summary "findings/<rule>"
    request  summary "sentinel/request"
    incident artifact "incident-<id>" of type "incident": the bundle's folder

Never the trainer's own run: a second writer makes the server overwrite rows of the first (wandb/wandb#12269). `init`
and `finish` wait for ever by default, so both are bounded; without a server the run goes to disk.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import wandb

from grpo_sentinel.sinks.child import Line, Report, TrackerDown, not_sent, numbers, plain_text
from grpo_sentinel.sinks.tensorboard import tag_of

MAX_RUNS = 8  # open at once
LEAST_ROOM = 8 << 20  # bytes on the disk: without a word the client loses what it cannot write
STEP = "sentinel/step"
_NOT_AN_ID = re.compile(r"[^A-Za-z0-9_-]")
_LEVELS = {"critical": "ERROR", "warning": "WARN"}


class WandbTracker:
    """Rows, alerts and summaries; W&B itself spools to disk what the server does not take."""

    def __init__(self, settings: Mapping[str, Any], report: Report) -> None:
        self._settings, self._report = settings, report
        self._runs: dict[tuple[str, str], Any] = {}
        self._to_disk = settings["mode"] == "offline"
        os.makedirs(settings["directory"], mode=0o700, exist_ok=True)

    def take(self, lines: Sequence[Line]) -> None:
        """Log lines; metrics of one run and step become one row. Raises `TrackerDown` while the disk is full."""
        if self._to_disk:
            self._need_room()
        rows: dict[tuple[str, str, int], dict[str, float]] = {}
        for line in lines:
            if line["type"] == "metrics":
                row = rows.setdefault((line["run_id"], line["node"], line["step"]), {})
                row |= {key_of(line, name): value for name, value in numbers(line["values"]).items()}
        for (run_id, node, step), row in rows.items():
            self._run(run_id, node).log({STEP: step, **row})
        for line in lines:
            if line["type"] == "finding":
                self._tell(self._run(line["run_id"], line["node"]), line)
            elif line["type"] == "request":
                asked = f"{line['action']} by {line['requested_by']}: {line['state']}, step {line['step']}"
                self._run(line["run_id"], line["node"]).summary["sentinel/request"] = f"{asked} {line['detail']}"[:500]
            elif line["type"] == "incident":
                self._attach(self._run(line["run_id"], line["node"]), line)

    def _need_room(self) -> None:
        disk = os.statvfs(self._settings["directory"])
        if disk.f_bavail * disk.f_frsize < LEAST_ROOM:
            raise TrackerDown(f"the disk of {self._settings['directory']} is full, and W&B runs go to disk")

    def _attach(self, run: Any, line: Line) -> None:
        """Add a bundle as an artifact; W&B copies it first, so that it may go from its place afterwards."""
        try:
            name = _NOT_AN_ID.sub("-", f"incident-{line['incident_id']}")[:120]
            about = {key: line[key] for key in ("title", "onset_step", "last_step", "run_id", "node")}
            artifact = wandb.Artifact(name, "incident", description=str(line["title"])[:300], metadata=about)
            add = artifact.add_dir if os.path.isdir(line["path"]) else artifact.add_file  # a folder or a tar.gz
            add(line["path"])
            run.log_artifact(artifact)
        except Exception as error:  # noqa: BLE001 - no server, no permission, a bundle that is just being replaced
            self._report(not_sent(line, error))

    def _tell(self, run: Any, finding: Line) -> None:
        ranks = ", ".join(map(str, finding["ranks"])) or "not known"
        text = f"{finding['message']} (rank {ranks}, since step {finding['onset_step']}, step {finding['step']})"
        run.summary[f"findings/{finding['rule']}"] = f"{finding['state']}: {text}"[:500]
        level = _LEVELS.get(finding["severity"])
        if finding["state"] != "firing" or level is None:
            return
        body = "\n".join([text, finding["why"], *(f"- {remedy}" for remedy in finding["remedies"])])
        title = f"{finding['rule']} ({finding['layer']})"
        run.alert(title=title, text=body[:2000], level=level, wait_duration=0)

    def _run(self, run_id: str, node: str) -> Any:
        key = (run_id, node)
        run = self._runs.pop(key, None)
        if run is None:
            while len(self._runs) >= MAX_RUNS:
                self._runs.pop(next(iter(self._runs))).finish()
            run = self._open(run_id, node)
        self._runs[key] = run
        return run

    def _open(self, run_id: str, node: str) -> Any:
        if self._settings["mode"] == "online":
            try:
                return self._init(run_id, node, "online")
            except Exception as error:  # noqa: BLE001 - no key, no server, no permission: all mean "to disk"
                self._to_disk = True
                place = self._settings["directory"]
                self._report(
                    {"problem": f"W&B runs go to disk, `wandb sync` sends them from {place}: {plain_text(error)}"}
                )
        return self._init(run_id, node, "offline")

    def _init(self, run_id: str, node: str, mode: Any) -> Any:
        """Begin a run. One on disk has a name that is used once: a second file synced into a run overwrites its rows,
        and the name of a run that could not begin online stays taken."""
        wanted = {
            "init_timeout": self._settings["init_timeout_seconds"],
            "finish_timeout": self._settings["finish_timeout_seconds"],
            "finish_timeout_raises": False,
            "x_transaction_log_flush_interval": 1.0,
            "console": "off",
            "silent": True,
            "disable_git": True,
            "disable_code": True,
            "x_disable_stats": True,
        }
        known = {name: value for name, value in wanted.items() if name in wandb.Settings.model_fields}
        run = wandb.init(
            project=self._settings["project"],
            entity=self._settings["entity"],
            id=own_id(run_id, node) + (f"-{time.time_ns() // 1_000_000:x}" if mode == "offline" else ""),
            name=f"sentinel {run_id}"[:120],
            group=self._settings["group"] or run_id,
            job_type="sentinel",
            config={"run_id": run_id, "node": node, "trainer_run": self._settings["trainer_run"]},
            dir=self._settings["directory"],
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(**known),
        )
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)
        return run

    def close(self) -> None:
        """Finish every run; each waits at most its own time-out for the server."""
        while self._runs:
            self._runs.popitem()[1].finish()


def own_id(run_id: str, node: str) -> str:
    """Name our run so that a sidecar that was started anew goes on with it, and no other run has the name."""
    digest = sha256(f"{run_id}\0{node}".encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{_NOT_AN_ID.sub('-', run_id)[:80]}-sentinel-{digest}"


def key_of(line: Line, name: str) -> str:
    """Name a series: `policy/loss/rank-0`, `eval/policy/loss/rank-0`, without a rank when there is only one."""
    rank = "" if line["rank"] is None else f"/rank-{line['rank']}"
    return ("eval/" if line["eval"] else "") + tag_of(name) + rank
