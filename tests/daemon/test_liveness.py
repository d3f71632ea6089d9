"""What the probes of a cluster ask of a real sidecar: it is started again for a loop that stands still, for nothing else."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from run_support import HERE, Started, cli, directory_of, until

from grpo_sentinel.cli.status import page_of
from grpo_sentinel.config import Config, load_config
from grpo_sentinel.daemon import daemon as daemon_module
from grpo_sentinel.daemon.claim import read_note
from grpo_sentinel.daemon.daemon import Daemon

ROOT = Path(__file__).parents[2]
RUN = "probed"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another process listens, as far as the sidecar can tell."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def ask(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def settings(tmp_path: Path, **sections: object) -> Path:
    path = tmp_path / "sentinel.yaml"
    path.write_text(json.dumps({"http": {"port": 0}, "collectors": {"nvml": {"enabled": False}}, **sections}))
    return path


def watched(started: Started, config: Path) -> str:
    """Start sidecar and trainer; gives the address of the page."""
    started.cli("run", "--config", config)
    started.trainer(RUN, "--bad-from", 3)
    return until(lambda: read_note(directory_of(RUN)), what="the daemon claims the run").url


def problems_metric(url: str) -> int:
    found = re.search(r"^grpo_sentinel_problems\{.*\} (\S+)$", ask(f"{url}/metrics")[1], re.MULTILINE)
    return -1 if found is None else int(float(found[1]))


def test_a_webhook_that_is_down_makes_it_unready_not_dead_and_all_views_count_it_alike(
    started: Started, tmp_path: Path
) -> None:
    sinks = {"alertmanager": {"enabled": True, "url": f"http://127.0.0.1:{closed_port()}"}}
    url = watched(started, settings(tmp_path, sinks=sinks))
    until(lambda: ask(f"{url}/readyz")[0] == 503, what="the sink's trouble is seen")
    until(lambda: problems_metric(url) == 1, what="the metric counts what the health endpoints name")
    code, body = ask(f"{url}/livez")
    assert (code, json.loads(body)["live"]) == (200, True)
    assert "alertmanager" in json.loads(body)["problems"][0]
    assert ask(f"{url}/healthz") == (200, body)
    shown = cli("status", "--config", tmp_path / "sentinel.yaml").stdout
    assert "the sink alertmanager is" in " ".join(shown.split()), shown
    token = (tmp_path / "state" / "grpo-sentinel" / "read-token").read_text().strip()
    assert page_of(load_config(tmp_path / "sentinel.yaml"), RUN) == f"{url}/#token={token}"
    assert token not in shown, "a pipe may lead into a log"
    probe = yaml.safe_load((ROOT / "deploy/kubernetes/job.yaml").read_text().split("\n---\n")[0])
    argv = probe["spec"]["template"]["spec"]["initContainers"][0]["livenessProbe"]["exec"]["command"]
    argv = [sys.executable, *(word.replace("http://127.0.0.1:9477", url) for word in argv[1:])]
    assert subprocess.run(argv, timeout=30, check=False, capture_output=True).returncode == 0


def test_nothing_wrong_is_no_problem_in_any_view_where_no_gpu_is(started: Started, tmp_path: Path) -> None:
    url = watched(started, settings(tmp_path, collectors={"nvml": {"enabled": True}}))
    until(lambda: problems_metric(url) >= 0, what="the run is in the metrics")
    until(lambda: "grpo_sentinel_host" in ask(f"{url}/metrics")[1] or problems_metric(url) == 0)
    assert json.loads(ask(f"{url}/readyz")[1])["problems"] == []
    assert problems_metric(url) == 0


def test_a_full_disk_makes_it_unready_not_dead(started: Started, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        space = os.statvfs(small)
        (small / "ballast").write_bytes(b"x" * (space.f_bavail * space.f_frsize))
        url = watched(started, settings(tmp_path, state_dir=str(small)))
        until(lambda: ask(f"{url}/readyz")[0] == 503, what="the full disk is seen")
        assert "is full" in ask(f"{url}/readyz")[1]
        assert ask(f"{url}/livez")[0] == 200
        (small / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True, timeout=30)
        until(lambda: ask(f"{url}/readyz")[0] == 200, 40, what="with room again the history goes on")
        until(
            lambda: sum(file.stat().st_size for file in small.glob("history.sqlite*")) > 100_000, what="it is written"
        )
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True, timeout=30)


def test_a_loop_that_stands_still_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "STUCK_SECONDS", 0.3)
    config = Config.model_validate({"http": {"port": 0}, "collectors": {"nvml": {"enabled": False}}})
    daemon, held, go_on, stop = Daemon(config), threading.Event(), threading.Event(), threading.Event()

    class Holding:
        name = "holding"

        def poll(self, wait_seconds: float = 0.0) -> list[object]:
            if held.is_set():
                go_on.wait(60)
            return []

        def close(self) -> None:
            pass

    daemon._collectors.append(Holding())
    loop = threading.Thread(target=daemon.run, args=(stop,), daemon=True)
    loop.start()
    try:
        until(lambda: daemon.url and ask(f"{daemon.url}/livez")[0] == 200, what="the loop turns")
        held.set()
        until(lambda: ask(f"{daemon.url}/livez")[0] == 503, what="the loop stands still")
        assert "the loop has not turned for" in ask(f"{daemon.url}/livez")[1]
        held.clear()
        go_on.set()
        until(lambda: ask(f"{daemon.url}/livez")[0] == 200, what="the loop turns again")
    finally:
        go_on.set()
        stop.set()
        loop.join(30)
    assert not loop.is_alive()


def test_with_a_fixed_port_that_is_taken_the_sidecar_ends_with_one_sentence(tmp_path: Path, taken: int) -> None:
    done = cli("run", "--config", settings(tmp_path, http={"port": taken, "fixed_port": True}))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"port {taken} is not to be had" in done.stderr
    assert "http.fixed_port" in done.stderr
    assert "Traceback" not in done.stderr


def test_training_under_launch_is_watched_all_the_same_when_a_fixed_port_is_taken(tmp_path: Path, taken: int) -> None:
    trainer = (sys.executable, HERE / "fake_trainer.py", "--steps", 200)
    config = settings(tmp_path, http={"port": taken, "fixed_port": True}, launch={"linger_seconds": 1})
    done = cli("launch", "--config", config, "--run-id", RUN, "--", *trainer)
    assert done.returncode == 0, done.stderr
    assert f"port {taken} is taken; page, API and /metrics are on port" in done.stderr
    assert "ended with exit code 0; nothing above a note" in done.stderr
