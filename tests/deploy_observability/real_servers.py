"""Prometheus and Alertmanager as Debian ships them, on free ports, ended by their pid."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def program(name: str) -> str:
    """Find a program of Debian's packages, or skip the test by name."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus prometheus-alertmanager")
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextlib.contextmanager
def serving(argv: list[str], url: str, folder: Path) -> Iterator[str]:
    """Run a server until the block ends; it is ready when /-/ready says so."""
    log = folder / f"{Path(argv[0]).name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        limit = time.monotonic() + 60
        while not _ready(url):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < limit, f"{argv[0]} was not ready within 60 s"
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def prometheus(config: Path, data: Path, port: int | None = None, *more: str) -> contextlib.AbstractContextManager[str]:
    """Run Prometheus; gives its address."""
    address = f"127.0.0.1:{port or free_port()}"
    argv = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={data}",
            f"--web.listen-address={address}", "--storage.tsdb.retention.time=10y", "--log.level=warn", *more]  # fmt: skip
    return serving(argv, f"http://{address}", config.parent)


def alertmanager(config: Path, data: Path, port: int) -> contextlib.AbstractContextManager[str]:
    """Run Alertmanager without gossip; gives its address."""
    argv = [program("prometheus-alertmanager"), f"--config.file={config}", f"--storage.path={data}",
            f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]  # fmt: skip
    return serving(argv, f"http://127.0.0.1:{port}", config.parent)


def ask(url: str, path: str, **parameters: object) -> list:
    """Ask Prometheus and give the result's list."""
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{query}", timeout=30) as answer:
        return json.loads(answer.read())["data"]["result"]
