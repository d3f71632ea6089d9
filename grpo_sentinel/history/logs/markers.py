"""Lines that speak of a fault: what each says, which layer it belongs to, and whether it can be the cause.

`role` tells how far a line may be trusted: `cause` names a cause by itself; `symptom` follows from something
earlier when there is anything earlier; `witness` cannot decide alone (an exit code, an asynchronous error);
`teardown` is printed while everything ends and decides nothing. A `cause` beats a `symptom` even when it is
printed later, because collectives time out on the ranks that are *not* at fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpo_sentinel.history.logs.lines import Line


@dataclass(frozen=True, slots=True)
class Marker:
    """One kind of line. `needle` is a plain text that every such line holds: it is looked for first."""

    name: str
    layer: str
    role: str  # cause | symptom | witness | teardown
    needle: str
    pattern: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A marker found in a log; `groups` are the named numbers and words of its pattern."""

    marker: Marker
    line: Line
    groups: dict[str, str]


_TABLE: tuple[tuple[str, str, str, str, str, str], ...] = (
    # ---- device
    ("xid", "device", "cause", "Xid", r"NVRM: Xid \((?P<gpu>[^)]*)\):\s*(?P<xid>\d+)", "the driver reported an Xid error"),
    ("fallen_off_bus", "device", "cause", "fallen off the bus", r"fallen off the bus", "a GPU fell off the bus"),
    ("ecc", "device", "cause", "uncorrectable ECC", r"uncorrectable ECC error", "uncorrectable memory error of a GPU"),
    ("gpu_lost", "device", "cause", "GPU is lost", r"GPU is lost", "NVML lost a GPU"),
    ("illegal_access", "undetermined", "witness", "illegal memory access", r"illegal memory access",
     "a kernel read or wrote outside its memory; the report is asynchronous, so the frame shown is no evidence"),
    ("cublas", "undetermined", "witness", "CUBLAS_STATUS", r"(?P<what>CUBLAS_STATUS_\w+)",
     "a cuBLAS call failed; often the first call after an asynchronous error"),
    # ---- data
    ("index_assert", "data", "cause", "srcIndex", r"srcIndex < srcSelectDimSize", "an index outside an embedding table: a token id outside the vocabulary"),
    ("oov", "data", "cause", "out of vocabulary", r"[Tt]oken id (?P<id>\d+|\w+) is out of vocabulary|Token id \w+ out of vocabulary", "a token id outside the vocabulary"),
    ("index_range", "data", "cause", "index out of range in self", r"index out of range in self", "a token id outside the embedding table"),
    ("triton_bounds", "data", "cause", "index out of bounds", r"index out of bounds: 0 <= \w+ < (?P<bound>\d+)", "an index outside a table of that many rows"),
    ("target_assert", "data", "cause", "Assertion `t >= 0", r"Assertion `t >= 0 && t < n_classes`", "a label outside the classes"),
    ("mask_shape", "data", "cause", "must match the size of tensor", r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\)", "two tensors of the batch have different lengths"),
    ("shape_mismatch", "data", "cause", "size mismatch", r"RuntimeError: .*size mismatch|size mismatch completion_mask", "two tensors of the batch have different sizes"),
    ("empty_dataset", "data", "cause", "StopIteration", r"\bStopIteration\b", "the data ran out"),
    ("too_long", "data", "cause", "longer than the", r"[Pp]rompt.*longer than the (?:maximum|specified)", "a prompt longer than the limit"),
    # ---- reward
    ("reward_none", "reward", "cause", "reward functions returned None", r"[Aa]ll reward functions returned None", "no reward function gave a score"),
    ("reward_error", "reward", "cause", "reward", r"(?:Error|Exception).*\b(?:in|from|calling)\b.*reward|(?P<fn>\w*reward\w*)\b.*raised \w*(?:Error|Exception)", "a reward function raised"),
    ("reward_frame", "reward", "witness", 'File "', r'File "[^"]*", line \d+, in (?P<fn>compute_(?:reward|score)|\w*reward_fn\w*|_?calculate_rewards?)', "a stack goes through the reward function"),
    ("verify_timeout", "reward", "cause", "Operation timed out!", r"TimeoutError: Operation timed out!", "the answer checker ran into its own time limit"),
    # ---- policy
    ("bad_probabilities", "policy", "symptom", "probability tensor contains", r"probability tensor contains either", "sampling met non-finite probabilities: the weights or logits were broken before"),
    ("kl_negative", "policy", "cause", "KL divergence is starting to become negative", r"starting to become negative: (?P<kl>-?[\d.]+)", "the KL estimate is far below zero: sampled and scored distribution differ"),
    # ---- gradient, optimizer
    ("overflow", "gradient", "symptom", "OVERFLOW!", r"OVERFLOW!.*?loss scale: (?P<scale>[\d.]+)(?:, reducing to (?P<to>[\d.]+))?", "the gradient overflowed and the update was skipped"),
    ("scale_minimum", "gradient", "cause", "loss scale already at minimum", r"loss scale already at minimum", "the loss scale cannot be lowered further: every gradient is non-finite"),
    ("grad_not_finite", "gradient", "symptom", "not finite", r"grad_norm is not finite: (?P<value>nan|inf)", "the gradient norm was not finite and the update was skipped"),
    ("anomaly", "gradient", "cause", "returned nan values", r"Function '(?P<op>\w+)' returned nan values", "anomaly detection names the operation that made NaN"),
    ("no_grad", "gradient", "cause", "does not require grad", r"element 0 of tensors does not require grad", "nothing in the loss requires a gradient"),
    ("unused_parameters", "gradient", "cause", "Expected to have finished reduction", r"Expected to have finished reduction in the prior iteration", "parameters took no part in the loss"),
    ("skipped_count", "none", "teardown", "skipped=", r"step=(?P<step>\d+), skipped=(?P<skipped>\d+)", "DeepSpeed counts skipped updates"),
    # ---- memory
    ("cuda_oom", "memory", "symptom", "o", r"CUDA (?:out of memory|Error: out of memory)|OutOfMemoryError|Tried to allocate [\d.]+ [GM]iB", "a GPU ran out of memory; the frame is the victim, not the culprit"),
    ("host_oom_ray", "memory", "cause", "memory pressure", r"killed due to memory pressure \(OOM\)", "Ray killed workers because the host ran out of memory"),
    ("host_oom_kernel", "memory", "cause", "oom-kill", r"oom-kill:constraint=(?P<constraint>\w+)", "the kernel killed a process for memory"),
    ("host_oom_cgroup", "memory", "cause", "ut of memory: Killed process", r"[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)", "the kernel killed a process for memory"),
    ("cache_flush", "memory", "symptom", "allocator cache flushes", r"pytorch allocator cache flushes since last step", "the allocator flushes its cache: memory is nearly full"),
    ("sleep_residue", "memory", "symptom", "still in use", r"(?P<used>\d[\d.]*) GiB (?:memory )?is still in use", "memory the rollout engine kept when it went to sleep"),
    ("shm", "memory", "cause", "insufficient shared memory", r"insufficient shared memory", "shared memory is too small"),
    ("bus_error", "memory", "cause", "Bus error", r"killed by signal: Bus error", "a data-loader worker died of a bus error: shared memory is full"),
    ("shm_full", "memory", "cause", "unable to write to file </torch", r"unable to write to file </torch", "shared memory is full"),
    ("disk_full", "memory", "cause", "l", r"No space left on device|StorageFull", "a file system is full"),
    ("write_failed", "memory", "cause", "PytorchStreamWriter failed", r"PytorchStreamWriter failed writing file", "a checkpoint could not be written"),
    # ---- communication
    ("collective_timeout", "communication", "symptom", "collective operation timeout",
     r"collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel_in>\d+))?(?:, NumelOut=(?P<numel_out>\d+))?", "a collective timed out: some rank did not come"),
    ("watchdog_stuck", "communication", "symptom", "watchdog got stuck", r"watchdog got stuck for (?P<seconds>\d+) seconds", "the watchdog of this process could not run: a local problem of this rank"),
    ("remote_error", "communication", "symptom", "emote", r"ncclRemoteError|remote process exited", "the other end of a connection went away"),
    ("connection_reset", "communication", "symptom", "onnection", r"Connection (?:reset|closed) by peer", "the other end of a connection went away"),
    ("gloo_timeout", "communication", "symptom", "Timed out waiting", r"Timed out waiting (?P<ms>\d+)ms for", "a gloo collective timed out: some rank did not come"),
    ("ib_error", "communication", "cause", "Got completion from peer", r"NET/IB : Got completion .* with error (?P<code>\d+)", "the network fabric reported an error"),
    ("collective_mismatch", "communication", "cause", "op.preamble.length", r"op\.preamble\.length <= op\.nbytes", "ranks called different collectives"),
    ("unhandled_nccl", "communication", "witness", "rror", r"unhandled (?:cuda|system) error|NCCL error in", "an NCCL call failed; the text after it may name the cause"),
    # ---- tooling
    ("nvml_init", "tooling", "cause", "nitialize NVML", r"Failed to initialize NVML: (?P<why>.*)", "NVML cannot be used: monitoring is blind, training goes on"),
    ("driver_mismatch", "tooling", "cause", "ersion mismatch", r"Driver/library version mismatch", "the NVIDIA driver was upgraded under a running system"),
    ("import_error", "tooling", "cause", "Error: ", r"(?:ModuleNotFoundError|ImportError): (?P<what>.*)", "a module is missing or does not fit"),
    ("deprecated_arg", "tooling", "cause", "unexpected keyword argument", r"got an unexpected keyword argument '(?P<arg>\w+)'", "versions of two libraries do not fit"),
    ("not_implemented", "tooling", "cause", "NotImplementedError", r"NotImplementedError", "the trainer does not support this combination"),
    # ---- cannot decide alone
    ("device_assert", "undetermined", "witness", "device-side assert", r"device-side assert triggered", "a kernel's assertion failed; the lines before it name it"),
    ("exit_minus_9", "undetermined", "witness", "xitcode", r"exitcode:? -9\b", "a process was killed with SIGKILL; by whom the log does not say"),
    ("sigkill", "undetermined", "witness", "SIGKILL", r"Signal 9 \(SIGKILL\)", "a process was killed with SIGKILL; by whom the log does not say"),
    ("ray_eof", "undetermined", "witness", "End of file", r"connection error code 2\. End of file", "a Ray worker went away; the log does not say why"),
    ("actor_died", "undetermined", "witness", "ActorDiedError", r"ActorDiedError", "a Ray actor died; the log does not say why"),
    ("segfault", "undetermined", "witness", "S", r"SIGSEGV|Segmentation fault", "a process crashed in native code"),
    ("python_error", "undetermined", "witness", "rror", r"^(?:\[rank\d+\]:\s*|\([^)]*pid=\d+[^)]*\)\s*)?(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*Error): (?P<message>.{0,200})",
     "an exception ended a process"),
    # ---- decides nothing
    ("not_destroyed", "none", "teardown", "has NOT been destroyed", r"process group has NOT been destroyed", "normal at exit"),
    ("heartbeat_monitor", "none", "teardown", "HeartbeatMonitor", r"HeartbeatMonitor", "printed while everything ends"),
    ("recv_bytes", "none", "teardown", "recvBytes", r"recvBytes", "printed while everything ends"),
    ("bind_failed", "none", "teardown", "Call to bind failed", r"NCCL WARN Call to bind failed", "harmless at start"),
)  # fmt: skip

MARKERS: tuple[Marker, ...] = tuple(Marker(*row) for row in _TABLE)

_COMPILED = tuple((marker, re.compile(marker.pattern)) for marker in MARKERS)

# Every line that any pattern can match holds one of these texts (a test proves it for a sample of each). They begin with
# letters that are rare in prose, because a search for a set of first letters is the cheapest look there is: one such
# search instead of sixty.
_GATES = (
    "ActorDied", "Assertion", "Bus error", "CUBLAS", "CUDA", "Connection", "Current loss scale", "ECC", "End of file",
    "Error", "Exception", "Expected to have", "File \"", "Function '", "GPU is lost", "GiB memory", "GiB is", "HeartbeatMon",
    "KL div", "Killed process", "kipped=", "NCCL", "NET/IB", "NOT been destr", "NVML", "NVRM", "No space left", "None", "OOM",
    "OVERFLOW", "OutOfMemory", "PytorchStream", "SIGKILL", "SIGSEGV", "Segmentation", "StopIteration", "StorageFull",
    "Timed out", "Tried to alloc", "Unexpected bus", "_norm is not", "bability tensor", "bind failed", "bounds: 0", "bus", "ger than the",
    "gth <= op", "keyword argument", "kill", "quire grad", "vBytes", "version mismatch", "vocabulary", "xit",
    "ytorch alloc", "ze mismatch", "ze of tensor", "</torch", "(shm",
)  # fmt: skip


def _gate() -> re.Pattern[str]:
    """Build `A(?:ctorDied|ssertion)|B(?:us error)|...`: one comparison decides about a first letter."""
    tails: dict[str, list[str]] = {}
    for text in _GATES:
        tails.setdefault(text[0], []).append(re.escape(text[1:]))
    return re.compile("|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in tails.items()))


_GATE = _gate()


def find_marker(line: Line) -> Hit | None:
    """Give the first marker that this line carries, None for most lines."""
    text = line.text
    if _GATE.search(text) is None:
        return None
    for marker, pattern in _COMPILED:
        if marker.needle in text:
            found = pattern.search(text)
            if found:
                groups = {key: value for key, value in found.groupdict().items() if value is not None}
                return Hit(marker=marker, line=line, groups=groups)
    return None
