"""No secret leaves: planted in every place that can hold one, looked for in everything that comes out.

A real sidecar under `launch` with every sink on; their far ends take everything, so that what they were sent is looked
at too. A secret may be where it belongs, in the header or address of its own request, and nowhere else.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import os
import sqlite3
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_support import Started, cli, directory_of, until

from grpo_sentinel.daemon.claim import read_note

sys.path.insert(0, str(Path(__file__).parents[1] / "sinks"))
from mlflow_stand_in import Mlflow
from stand_in import serving
from wandb_stand_in import Wandb

RUN, MARK = "hush", "planted"
TRACKERS = [name for name in ("wandb", "mlflow") if importlib.util.find_spec(name)]
NOTIFY, OTLP = (importlib.util.find_spec(name) is not None for name in ("apprise", "opentelemetry"))
ENVIRONMENT = {
    "WANDB_API_KEY": "planted" + 33 * "7",
    "MLFLOW_TRACKING_USERNAME": "ada",
    "MLFLOW_TRACKING_PASSWORD": "planted-mlflow-password",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20planted-otlp-header,x-key=planted-otlp-key",
    "HUGGING_FACE_HUB_TOKEN": "planted-hub-token-of-the-environment",
    "SOME_PASSWORD": "planted-password-of-the-environment",
    "HOOK_TOKEN": "planted-webhook-token",
}


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Far ends that take everything, and the configuration that sends it there."""
    wandb, mlflow = Wandb(), Mlflow()
    with serving() as hook:
        host = hook.url.removeprefix("http://")
        monkeypatch.setenv("WANDB_BASE_URL", wandb.url)
        monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
        monkeypatch.setenv("GRPO_SENTINEL_WEBHOOK_URL", f"{hook.url}/planted-webhook-path")
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        files = {
            "act": "planted-act-token-of-the-file", "alertmanager": "planted-alertmanager-token",
            "notify": f"json://ada:planted-notify-password@{host}/planted-notify-path\nslack://planted/bad/channel",
        }  # fmt: skip
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        tracker = {"enabled": True, "exit_seconds": 4}
        body = {
            "http": {"port": 0, "read_token": "planted-read-token", "act_token_file": str(tmp_path / "act")},
            "collectors": {"nvml": {"enabled": False}},
            "launch": {"linger_seconds": 1},
            "halting": {"dry_run": True},
            "incidents": {"samples": "full"},
            "sinks": {
                "history": {"flush_seconds": 0.1}, "jsonl": {"enabled": True}, "tensorboard": {"enabled": True},
                "alertmanager": {
                    "enabled": True, "url": f"http://ada:planted-url-password@{host}",
                    "token_file": str(tmp_path / "alertmanager"),
                },
                "webhook": {"enabled": True, "group_wait_seconds": 0, "token_env": "HOOK_TOKEN"},
                "notify": {
                    "enabled": NOTIFY, "group_wait_seconds": 0,
                    "note": {"urls_file": str(tmp_path / "notify")},
                },
                "wandb": {**tracker, "enabled": "wandb" in TRACKERS},
                "mlflow": {**tracker, "enabled": "mlflow" in TRACKERS, "tracking_uri": mlflow.url},
                "otlp": {**tracker, "enabled": OTLP, "endpoint": f"http://ada:planted-otlp-password@{host}"},
                "external": {"nobody_offers_this": {"password": "planted-external-password", "to": "file.csv"}},
            },
        }  # fmt: skip
        config = tmp_path / "sentinel.yaml"
        config.write_text(json.dumps(body))
        yield {"config": config, "hook": hook, "wandb": wandb, "mlflow": mlflow}
    wandb.close()
    mlflow.close()


def ask(url: str, token: str = "") -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read(400_000) if "stream" not in url else answer.read1(400_000)
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def everything_served(url: str) -> dict[str, bytes]:
    """What page, API, stream and /metrics say to somebody who may read."""
    run = f"run={RUN}"
    names = [path.name for path in incidents()]
    paths = ["/", "/metrics", "/readyz", "/static/main.js", f"/api/v1/stream?{run}", "/api/v1/nothing"]
    paths += [f"/api/v1/{path}" for path in (
        f"status?{run}", f"findings?{run}&all=1", f"findings?{run}", f"signals?{run}", "runs", f"events?{run}",
        f"events?{run}&kind=config", f"history?{run}", f"heat?{run}", f"incidents?{run}", f"walk?{run}",
        *(f"incident?name={name}" for name in names),
    )]  # fmt: skip
    out = {}
    for path in paths:
        code, out[path] = ask(url + path, "planted-read-token")
        assert code == (404 if "nothing" in path else 503 if path == "/readyz" else 200), (path, code, out[path][:300])
        if path.startswith("/api/v1/s"):
            assert ask(url + path)[0] == 401
    return out


def incidents() -> list[Path]:
    return [path for path in (state() / "incidents").glob("*") if not path.name.startswith(".")]


def state() -> Path:
    return Path(os.environ["XDG_STATE_HOME"]) / "grpo-sentinel"


def written(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file under a folder, unpacked as far as it can be."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        if path.suffix == ".sqlite":
            with sqlite3.connect(path) as database:
                data = "\n".join(database.iterdump()).encode()
        yield from unpacked(str(path), data)


def unpacked(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    if name.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(data)) as packed:
            for member in packed:
                file = packed.extractfile(member)
                if file is not None:
                    yield from unpacked(f"{name}/{member.name}", file.read())
    elif name.endswith(".gz"):
        yield name, gzip.decompress(data)
    else:
        yield name, data


def unheard(outside: dict[str, Any]) -> list[str]:
    """Far ends that have not been told of a finding yet."""
    paths = {path for path, _, _ in outside["hook"].requests}
    wanted = {"/planted-webhook-path", "/api/v2/alerts", *(["/planted-notify-path"] if NOTIFY else [])}
    wanted |= {"/v1/logs"} if OTLP else set()
    told = {"wandb": outside["wandb"].alerts, "mlflow": [one for one in outside["mlflow"].runs.values() if one["tags"]]}
    return sorted(wanted - paths) + [name for name in TRACKERS if not told[name]]


def leaks(outputs: dict[str, bytes]) -> list[str]:
    found = []
    for name, data in outputs.items():
        at = data.find(MARK.encode())
        if at >= 0:
            found.append(f"{name}: …{data[max(0, at - 60) : at + 60]!r}…")
    return found


def commands(folder: Path, config: Path) -> dict[tuple[object, ...], int | None]:
    """Whatever prints what the sidecar knows, and the exit code that it must have; None where the machine decides."""
    ours, one = ("--config", config), incidents()[0]
    return {
        ("status", RUN, "--json"): 0, ("status", RUN, "--walk"): 0,
        ("doctor", "--json", *ours): None, ("doctor", *ours): None, ("run", "--once", "--json", *ours): 0,
        ("incident", "list", "--json", *ours): 0, ("incident", "show", one, *ours): 0,
        ("incident", "export", one, "-o", folder / "out.tar.gz", *ours): 0,
        ("report", RUN, "-o", "-", *ours): 0, ("report", RUN, "-o", folder / "report.html", *ours): 0,
        ("notify", "test", *ours): int(NOTIFY), ("halt", RUN, "--reason", "enough", "--json"): 0,
    }  # fmt: skip


def test_no_secret_comes_out_anywhere(started: Started, tmp_path: Path, outside: dict[str, Any]) -> None:
    script, log, config = Path(__file__).with_name("secretive_trainer.py"), tmp_path / "train.log", outside["config"]
    trainer = f'"{sys.executable}" "{script}" --hub-token planted-hub-token > "{log}"'
    ours = ("launch", "--config", config, "--run-id", RUN, "--log", log)
    with (tmp_path / "said").open("w") as said:
        launch = started.python("-m", "grpo_sentinel.cli", *ours, "--", "sh", "-c", trainer, stderr=said)
    note = until(lambda: read_note(directory_of(RUN)), what="the sidecar watches")
    until(lambda: [path for path in incidents() if (path / "manifest.json").is_file()], 40, "an incident")
    until(lambda: not unheard(outside), 60, "every far end has heard of it")

    outputs = everything_served(note.url)
    family = [psutil.Process(note.pid), *psutil.Process(note.pid).children(recursive=True)]
    outputs |= {f"command line of {one.pid}": " ".join(one.cmdline()).encode() for one in family}
    for command, code in commands(tmp_path, config).items():
        done = cli(*command)
        outputs[" ".join(map(str, command))] = (done.stdout + done.stderr).encode()
        assert code in (None, done.returncode), (command, done.stdout, done.stderr)
    launch.wait(60)
    outputs["launch"] = (tmp_path / "said").read_bytes()
    outputs |= dict(written(state()))
    outputs["report.html"] = (tmp_path / "report.html").read_bytes()
    outputs |= dict(unpacked("export.tar.gz", (tmp_path / "out.tar.gz").read_bytes()))
    for number, (path, _, body) in enumerate(outside["hook"].requests):
        outputs[f"posted {number} to {path[:8]}"] = body if isinstance(body, bytes) else json.dumps(body).encode()
    for name in ("wandb", "mlflow"):
        outputs[name] = repr(vars(outside[name])).encode()
    found = leaks(outputs)
    assert not found, "\n".join(found)
    for name in ("launch", "report.html", "/api/v1/findings?run=hush", "wandb", "mlflow"):
        if name not in ("wandb", "mlflow") or name in TRACKERS:
            assert b"HTTPError: 401 for https://(removed)@hub/x" in outputs[name], f"{name} tells the rest of it"
    assert any(name.endswith("0-train.log") and b"logging in with (removed)" in data for name, data in outputs.items())
