"""The example pod: what its two containers share, and times that fit into the grace period."""

from __future__ import annotations

from pathlib import Path

import yaml

from grpo_sentinel.config import LaunchConfig, load_config

JOB, SETTINGS = yaml.safe_load_all((Path(__file__).parents[2] / "deploy" / "kubernetes" / "job.yaml").read_text())
POD = JOB["spec"]["template"]["spec"]
(SIDECAR,), (TRAINER,) = POD["initContainers"], POD["containers"]
TORCHRUN_KILLS_SECONDS, SIDECAR_ENDS_SECONDS = 30, 15


def _settings(tmp_path: Path):
    path = tmp_path / "sentinel.yaml"
    path.write_text(SETTINGS["data"]["sentinel.yaml"])
    return load_config(path)


def test_the_containers_share_rings_user_settings_and_processes(tmp_path: Path) -> None:
    config = _settings(tmp_path)
    mounts = [{one["mountPath"]: one["name"] for one in container["volumeMounts"]} for container in (SIDECAR, TRAINER)]
    assert mounts[0] == mounts[1]
    assert {config.ring_dir, config.state_dir} <= set(mounts[0])
    assert set(mounts[0].values()) == {volume["name"] for volume in POD["volumes"]}
    shm = next(volume for volume in POD["volumes"] if volume["name"] == mounts[0]["/dev/shm"])
    assert shm["emptyDir"]["medium"] == "Memory"
    assert POD["shareProcessNamespace"]
    assert POD["securityContext"]["runAsUser"] > 0
    assert SIDECAR["restartPolicy"] == "Always", "so it outlives the trainer's container"
    named = next(volume for volume in POD["volumes"] if volume["name"] == "settings")["configMap"]["name"]
    assert named == SETTINGS["metadata"]["name"]


def test_the_liveness_probe_asks_whether_the_loop_turns_on_the_port_that_the_sidecar_must_have(tmp_path: Path) -> None:
    asked = SIDECAR["livenessProbe"]["exec"]["command"][-1]
    http = _settings(tmp_path).http
    assert f"'http://127.0.0.1:{http.port}/livez'" in asked
    assert http.fixed_port


def test_a_notice_has_run_its_course_before_the_grace_period_is_over(tmp_path: Path) -> None:
    config = _settings(tmp_path)
    assert config.launch.on_notice == {"TERM": "checkpoint-and-halt"}
    assert config.launch.notice_seconds is not None
    course = config.launch.notice_seconds + TORCHRUN_KILLS_SECONDS + config.launch.linger_seconds + SIDECAR_ENDS_SECONDS
    assert course < POD["terminationGracePeriodSeconds"]
    assert config.halting.acknowledge_seconds < config.launch.notice_seconds, "stacks come before the end"


def test_a_halted_job_is_not_started_again_and_a_drained_one_is(tmp_path: Path) -> None:
    drained, noticed, fail = JOB["spec"]["podFailurePolicy"]["rules"]
    assert (drained["action"], drained["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (noticed["action"], noticed["onExitCodes"]["containerName"]) == ("Ignore", TRAINER["name"])
    assert noticed["onExitCodes"]["values"] == [_settings(tmp_path).launch.notice_exit_code]
    assert fail["action"] == "FailJob"
    assert fail["onExitCodes"]["values"] == [LaunchConfig().halted_exit_code]
    assert fail["onExitCodes"]["containerName"] == TRAINER["name"]
    assert POD["restartPolicy"] == "Never", "a pod failure policy needs it"
