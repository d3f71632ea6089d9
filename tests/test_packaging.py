"""What is installed: the switch for zero-code attachment, rules, types; no tests, and no torch for the sidecar."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling", reason="hatchling builds the wheel: pip install hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        yield archive


def test_the_wheel_holds_the_switch_the_rules_and_the_type_marker(wheel):
    names = set(wheel.namelist())
    assert {"grpo_sentinel.pth", "grpo_sentinel/py.typed"} <= names
    for data in (*ROOT.glob("grpo_sentinel/**/*.yaml"), *ROOT.glob("grpo_sentinel/web/**/*.js")):
        assert str(data.relative_to(ROOT)) in names
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"grpo_sentinel", "grpo_sentinel.pth"}


def test_the_wheel_names_its_licence_and_the_command(wheel):
    info = next(name.split("/")[0] for name in wheel.namelist() if "dist-info" in name)
    assert "grpo-sentinel = grpo_sentinel.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()


def test_installing_the_sidecar_brings_no_torch_and_no_training_library(wheel):
    info = next(name.split("/")[0] for name in wheel.namelist() if "dist-info" in name)
    metadata = wheel.read(f"{info}/METADATA").decode()
    always = [line for line in re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE) if "extra ==" not in line]
    names = {re.match(r"[\w-]+", line)[0].lower() for line in always}
    assert names == {
        "pyyaml", "psutil", "nvidia-ml-py", "prometheus-client", "pydantic", "click", "rich", "starlette", "uvicorn",
    }  # fmt: skip


def test_every_pinned_version_satisfies_the_lower_bound_of_the_project():
    from packaging.requirements import Requirement

    project = (ROOT / "pyproject.toml").read_text()
    bounds = {}
    for text in re.findall(r'"([A-Za-z][\w.-]+>=[\d.]+)"', project):
        requirement = Requirement(text)
        bounds[requirement.name.lower()] = requirement.specifier
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "requirements-test.txt").read_text(), re.MULTILINE))
    assert len(pinned) > 20
    for name, version in pinned.items():
        if name.lower() in bounds:
            assert bounds[name.lower()].contains(version), f"{name}=={version}"


@pytest.mark.parametrize("switch", [None, "0"])
def test_an_interpreter_without_the_switch_loads_nothing_of_the_package(switch, monkeypatch):
    if switch is not None:
        monkeypatch.setenv("GRPO_SENTINEL", switch)
    code = "import sys; print([name for name in sys.modules if name.startswith(('grpo', 'torch'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
