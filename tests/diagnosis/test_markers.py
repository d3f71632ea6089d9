"""A line of each kind of fault is recognised, however cheap the first look at it is."""

from __future__ import annotations

import pytest

from grpo_sentinel.history.logs.lines import Line
from grpo_sentinel.history.logs.markers import MARKERS, find_marker

SAMPLES = {
    "xid": "NVRM: Xid (PCI:0000:44:00): 31, pid=9, name=python, MMU Fault: ENGINE GRAPHICS",
    "fallen_off_bus": "NVRM: fallen off the bus and is not responding to commands.",
    "ecc": "terminated with exception: CUDA error: uncorrectable ECC error encountered",
    "gpu_lost": "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.  Reboot the system",
    "illegal_access": "CUDA error: an illegal memory access was encountered",
    "cublas": "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
    "index_assert": "../Indexing.cu:1308: block: [56,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
    "oov": "ValueError: Token id 151708 is out of vocabulary",
    "index_range": "IndexError: index out of range in self",
    "triton_bounds": "Triton: index out of bounds: 0 <= tmp4 < 16000",
    "target_assert": "Assertion `t >= 0 && t < n_classes` failed.",
    "mask_shape": "The size of tensor a (512) must match the size of tensor b (513) at non-singleton dimension 1",
    "shape_mismatch": "RuntimeError size mismatch completion_mask * tool_mask",
    "empty_dataset": "StopIteration",
    "too_long": "Prompt of length 5000 is longer than the maximum model length of 4096",
    "reward_none": "UserWarning: All reward functions returned None for the following kwargs",
    "reward_error": "Exception in worker calling reward function f",
    "reward_frame": '  File "/a/b.py", line 3, in compute_score',
    "verify_timeout": "TimeoutError: Operation timed out!",
    "bad_probabilities": "probability tensor contains either `inf`, `nan` or element < 0",
    "kl_negative": "UserWarning: KL divergence is starting to become negative: -5.27",
    "overflow": "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32",
    "scale_minimum": "Current loss scale already at minimum - cannot decrease scale anymore.",
    "grad_not_finite": "WARN: grad_norm is not finite: nan",
    "anomaly": "Function 'ExpBackward0' returned nan values in its 0th output.",
    "no_grad": "element 0 of tensors does not require grad and does not have a grad_fn",
    "unused_parameters": "Expected to have finished reduction in the prior iteration before starting a new one.",
    "skipped_count": "[Rank 0] step=10, skipped=6, lr=[1e-06], mom=[(0.9, 0.95)]",
    "cuda_oom": "CUDA out of memory. Tried to allocate 1.42 GiB.",
    "host_oom_ray": "1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",
    "host_oom_kernel": "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x",
    "host_oom_cgroup": "Memory cgroup out of memory: Killed process 31 (python) total-vm:9kB",
    "cache_flush": "3 pytorch allocator cache flushes since last step. this happens when there is high memory pressure",
    "sleep_residue": "Sleep mode freed 46.35 GiB memory, 26.10 GiB memory is still in use.",
    "shm": "This might be caused by insufficient shared memory (shm).",
    "bus_error": "DataLoader worker (pid 13) is killed by signal: Bus error.",
    "shm_full": "unable to write to file </torch_739_1>",
    "disk_full": "OSError: [Errno 28] No space left on device",
    "write_failed": "PytorchStreamWriter failed writing file data/176: file write failed",
    "collective_timeout": "collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST, NumelIn=112, NumelOut=112, Timeout(ms)=1)",
    "watchdog_stuck": "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
    "remote_error": "ncclRemoteError: A call failed possibly due to a network error",
    "connection_reset": "Connection reset by peer",
    "gloo_timeout": "Timed out waiting 1800000ms for recv operation to complete",
    "ib_error": "NET/IB : Got completion from peer 10.0.0.1 with error 12, opcode 0, len 0, vendor err 129",
    "collective_mismatch": "op.preamble.length <= op.nbytes. 64 vs 4",
    "unhandled_nccl": "NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error",
    "nvml_init": "Failed to initialize NVML: Unknown Error",
    "driver_mismatch": "Driver/library version mismatch",
    "import_error": "ImportError: cannot import name 'x' from 'y'",
    "deprecated_arg": "__init__() got an unexpected keyword argument 'foo'",
    "not_implemented": "NotImplementedError",
    "device_assert": "CUDA error: device-side assert triggered",
    "exit_minus_9": "failed (exitcode: -9) local_rank: 2 (pid: 31) of binary: python",
    "sigkill": "Signal 9 (SIGKILL) received by PID 31",
    "ray_eof": "connection error code 2. End of file",
    "actor_died": "ray.exceptions.ActorDiedError: The actor died unexpectedly",
    "segfault": "Segmentation fault (core dumped)",
    "python_error": "[rank1]: KeyError: 'answer'",
    "not_destroyed": "WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL",
    "heartbeat_monitor": "HeartbeatMonitor is going down",
    "recv_bytes": "failed to recv, got 0 bytes in recvBytes",
    "bind_failed": "NCCL WARN Call to bind failed : Address already in use",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_line_of_each_kind_is_recognised(name: str) -> None:
    hit = find_marker(Line("log", 1, SAMPLES[name]))
    assert hit is not None
    assert hit.marker.name == name


def test_every_kind_has_a_sample() -> None:
    assert set(SAMPLES) == {marker.name for marker in MARKERS}


@pytest.mark.parametrize(
    "text", ["the reward of the answer is 3", "loading checkpoint shards", "INFO step 4 took 3.1 s", "GPU memory 40 %", ""]
)
def test_ordinary_lines_are_no_faults(text: str) -> None:
    assert find_marker(Line("log", 1, text)) is None
