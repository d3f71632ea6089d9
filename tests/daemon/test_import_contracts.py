"""Who may import whom, checked on the real import graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]

EDGES = {
    "pynvml": {"grpo_sentinel.collectors.nvml_reader"},
    "psutil": {"grpo_sentinel.collectors.host"},
    "sqlite3": {"grpo_sentinel.history.database"},
    "click": {"grpo_sentinel.cli"},
    "rich": {"grpo_sentinel.cli"},
    "starlette": {"grpo_sentinel.web"},
    "uvicorn": {"grpo_sentinel.web"},
    "pydantic": {"grpo_sentinel.config", "grpo_sentinel.settings_section", "grpo_sentinel.settings_sinks"},
    "prometheus_client": {"grpo_sentinel.sinks"},
    "pickle": set(),
    "marshal": set(),
    "shelve": set(),
}
"""Library -> the module or package that may import it."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("grpo_sentinel", include_external_packages=True, cache_dir=None)


def test_the_contracts_in_pyproject_hold() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("library", EDGES)
def test_an_edge_library_stays_at_its_edge(graph: grimp.ImportGraph, library: str) -> None:
    if library not in graph.modules:
        return  # nobody imports it
    importers = graph.find_modules_that_directly_import(library)
    strangers = {
        one for one in importers if not any(one == home or one.startswith(home + ".") for home in EDGES[library])
    }
    assert not strangers
