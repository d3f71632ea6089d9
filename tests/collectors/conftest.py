"""A fake NVML library, and rank processes that are ended with their test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from collector_worlds import HERE, GpuWorld, RankProcess

SOURCE = HERE.parent / "fakenvml" / "fakenvml.c"


def _build(directory: Path, *options: str) -> Path:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed: the fake libnvidia-ml.so.1 cannot be built")
    library = directory / "libnvidia-ml.so.1"
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", *options]
    subprocess.run([gcc, *flags, "-o", str(library), str(SOURCE)], check=True, timeout=60)
    return directory


@pytest.fixture(scope="session")
def nvml_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("old-nvml"), "-DOLD_DRIVER")


@pytest.fixture
def gpus(nvml_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuWorld:
    """Two healthy GPUs, seen by every process started from here."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_directory))
    monkeypatch.setenv("FAKE_NVML_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("FAKE_NVML_EVENTS", str(tmp_path / "events"))
    return GpuWorld(tmp_path)


@pytest.fixture
def start_rank(tmp_path: Path) -> Iterator[Callable[..., RankProcess]]:
    """Start ranks that write to `tmp_path / "run"`; all are ended with the test."""
    started: list[RankProcess] = []
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)

    def start(rank: int, slots: int = 256) -> RankProcess:
        started.append(RankProcess(directory, rank, slots))
        return started[-1]

    yield start
    for rank in started:
        rank.kill()
        for pipe in (rank.process.stdin, rank.process.stdout):
            if pipe is not None:
                pipe.close()
