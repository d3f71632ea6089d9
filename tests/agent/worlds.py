"""The scenarios of loop_worker.py by world size; all of one size share their processes."""

from pathlib import Path

WORKER = Path(__file__).with_name("loop_worker.py")
ALWAYS = {"local_gradients": "always"}
HALT = {"step": 3, "action": "CHECKPOINT_AND_HALT"}
ONE = {
    "vote breaks": {"vote_breaks_at": [0, 3], "ask": {"rank": 0, "step": 4, "action": "CHECKPOINT_AND_HALT"}},
    "switched off": {"env": {"GRPO_SENTINEL": "0"}},
    "schedule": {"schedule": True, "lr_behind_the_schedule": [0, 4]},
    "scaler": {"scaler": True, "overflow": [0, 3]},
    "scaler, unobserved": {"scaler": True, "unscale": False, "observe_gradients": False, "overflow": [0, 3]},
}
TWO = {
    "reduced nan": {"reduced_nan": [1, 3]},
    "reduced spike": {"reduced_spike": [1, 4]},
    "bad settings": {"env": {"GRPO_SENTINEL_SETTINGS": "not json"}},
    "broken probe": {"broken_probe": [1], "ask": {"rank": 1, "step": 4, "action": "CHECKPOINT_AND_HALT"}},
    "halt asked of node 0": {"ask": {"rank": 0, **HALT}, "steps": 50, "nodes": True},
    "halt asked of node 1": {"ask": {"rank": 1, **HALT}, "steps": 50, "nodes": True},
    "checkpoint": {"ask": {"rank": 0, "step": 2, "action": "CHECKPOINT"}},
    "scaler skips": {"observe_gradients": False, "scaler_skips_at": [1, 2]},
    "no ring": {
        "ring_is_a_file": [1],
        "reduced_nan": [0, 2],
        "data": True,
        "ask": {"rank": 0, "step": 5, "action": "HALT_NOW"},
    },
    "local nan": {"local_nan": [1, 3], "steps": 5},
    "vitals": {
        "settings": {"vitals_every": 2},
        "weight_drifts": [1, 3],
        "sleeps": [1, 6],
        "loss_nan": [0, 7],
        "steps": 9,
    },
    "vitals, unequal settings": {"settings": {"vitals_every": 2}, "rank_settings": [1, {"vitals_every": 1000}]},
    "scaler overflows on one rank": {"scaler": True, "overflow": [1, 3]},
    "fsdp1": {"parallel": "fsdp1", "clip": 0.2, "reduced_nan": [1, 3], "settings": {"activations_every": 2}},
    "fsdp2": {"parallel": "fsdp2", "clip": 0.2, "reduced_nan": [1, 3], "settings": {"activations_every": 2}},
    "fsdp1, norm unknown": {"parallel": "fsdp1", "reduced_nan": [1, 3]},
    "fsdp2, norm unknown": {"parallel": "fsdp2", "reduced_nan": [1, 3]},
    "fsdp1, bound": {"parallel": "fsdp1", "settings": {"skip_above_norm": 1e6}, "steps": 3},
    "fsdp2, bound": {"parallel": "fsdp2", "settings": {"skip_above_norm": 1e6}, "steps": 3},
    "local spike": {
        "local_spike": [1, [[10, 1], [14, 1]]],
        "accumulation": 2,
        "steps": 24,
        "settings": {"local_gradient_steps": 4, "activations_every": 2},
    },
    "local nan, always": {"local_nan": [1, 3], "steps": 3, "accumulation": 2, "settings": ALWAYS},
}
THREE = {
    "absent": {"absent": [2], "ask": {"rank": 0, **HALT}, "settings": {"handshake_seconds": 2}},
}
