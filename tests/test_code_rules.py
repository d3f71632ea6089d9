"""Rules about code that are code: what no module may do, and what must not be loaded when the sidecar runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "grpo_sentinel").rglob("*.py"))


def test_nothing_is_evaluated_from_data_and_nothing_is_packed_into_shared_memory():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path.name} line {node.lineno}"
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("pack_into", "shared_memory"), f"{path.name} line {node.lineno}"


def test_no_file_is_longer_than_460_lines_and_every_one_says_what_it_is():
    for path in MODULES:
        text = path.read_text()
        assert len(text.splitlines()) <= 460, path
        assert len(text.splitlines()) <= 1 or ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


def test_no_path_of_a_developer_stands_in_the_package():
    for path in MODULES:
        assert not re.search(r"/(work|root|home/\w+)/", path.read_text()), path


def test_the_command_line_and_the_daemon_load_no_torch_when_they_run():
    code = (
        "import sys, grpo_sentinel.cli, grpo_sentinel.daemon.daemon, grpo_sentinel.web, grpo_sentinel.rules;"
        "print([name for name in ('torch', 'transformers', 'trl', 'numpy', 'grpo_sentinel.agent.entry')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[]", done.stderr
