"""Who may import whom: the contracts of pyproject.toml, and the edge libraries that have one door each."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "grpo_sentinel"
DOORS = {
    "pynvml": ("collectors/nvml_reader.py",),
    "psutil": ("collectors/host.py",),
    "sqlite3": ("history/database.py",),
    "prometheus_client": ("sinks/prometheus.py",),
    "pydantic": ("config.py",),
    "yaml": ("config.py", "rules/load.py"),
    "click": ("cli/",),
    "rich": ("cli/",),
    "starlette": ("web/",),
    "uvicorn": ("web/",),
    "wandb": ("sinks/",),
    "mlflow": ("sinks/",),
    "pickle": (),
    "multiprocessing.shared_memory": (),
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_the_import_contracts_are_kept():
    argv = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("library", DOORS)
def test_every_edge_library_has_one_door(library):
    for path in PACKAGE.rglob("*.py"):
        names = imports(path)
        if any(name == library or name.startswith(f"{library}.") for name in names):
            place = str(path.relative_to(PACKAGE))
            assert place.startswith(DOORS[library]) if DOORS[library] else False, f"{place} imports {library}"


def test_no_code_is_evaluated_from_data_and_nothing_is_packed_into_shared_memory():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path.name} line {node.lineno}"
            if isinstance(node, ast.Attribute):
                assert node.attr != "pack_into", f"{path.name} line {node.lineno}"


def test_the_command_line_and_the_daemon_load_no_torch_when_they_run():
    code = (
        "import sys, grpo_sentinel.cli, grpo_sentinel.daemon.daemon, grpo_sentinel.web, grpo_sentinel.rules.engine;"
        "print([name for name in ('torch', 'transformers', 'trl', 'numpy', 'grpo_sentinel.agent.entry')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[]", done.stderr
