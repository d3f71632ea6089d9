"""What the Grafana dashboards show, as tables: panels, their PromQL, units and sizes. `build_dashboards.py` writes them.

Every selector names `$run_id`, and `$node` and `$rank` where the dashboard has them. Widths are of 24 columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RUN = 'run_id="$run_id"'
NODE = f'{RUN}, node=~"$node"'
RANK = f'{NODE}, rank=~"$rank"'
HOST = 'node=~"$node"'
BY_RANK = "rank {{rank}}"
WORST = (
    "max by (%s) (3 * (grpo_sentinel_findings{%s, severity=\"critical\"} > bool 0) "
    "or 2 * (grpo_sentinel_findings{%s, severity=\"warning\"} > bool 0) "
    "or (grpo_sentinel_findings{%s, severity=\"note\"} > bool 0))"
)
SEVERITIES = {"1": ("note", "blue"), "2": ("warning", "orange"), "3": ("critical", "red")}


@dataclass(frozen=True)
class Query:
    """One expression and how its series are named."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel; `kind` is timeseries, stat, table or state."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    about: str = ""
    log: bool = False
    stack: bool = False
    values: dict[str, tuple[str, str]] = field(default_factory=dict)  # number -> text, colour
    hidden: tuple[str, ...] = ()  # columns of a table that are left out
    named: dict[str, str] = field(default_factory=dict)  # column of a table -> what stands above it


@dataclass(frozen=True)
class Dashboard:
    """One dashboard: rows of panels."""

    uid: str
    title: str
    about: str
    variables: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def lines(title: str, unit: str, *queries: tuple[str, str], **more: object) -> Panel:
    """Make a panel of lines from (expression, legend) pairs."""
    return Panel(title, tuple(Query(*query) for query in queries), unit, **more)  # type: ignore[arg-type]


def by_rank(title: str, signal: str, unit: str = "short", **more: object) -> Panel:
    """Make a panel with one line for each rank of one signal."""
    return lines(title, unit, (f"grpo_sentinel_{signal}{{{RANK}}}", BY_RANK), **more)


def number(title: str, expr: str, unit: str = "short", **more: object) -> Panel:
    """Make a panel with one big number."""
    return Panel(title, (Query(expr),), unit, "stat", **{"width": 4, "height": 4, **more})  # type: ignore[arg-type]


def firing(width: int = 24, height: int = 8) -> Panel:
    """Make the table of what fires now."""
    expr = f"max by (severity, layer, rule, rank, node, root) (grpo_sentinel_finding_onset_step{{{NODE}}})"
    return Panel(
        "What fires now", (Query(expr),), "none", "table", width, height, hidden=("Time",), named={"Value": "since step"},
        about="root=true: a cause of its own; false: it follows from another one.",
    )  # fmt: skip


OVERVIEW = Dashboard(
    "grpo-sentinel-overview", "Run overview", "One run by layers, lowest first: a fault shows first in the lowest layer.",
    ("run_id", "node"),
    (
        ("Now", (
            number("Step", f"max(grpo_sentinel_rank_step{{{NODE}}})", "none"),
            number("Ranks alive", f'sum(grpo_sentinel_rank_state{{{NODE}, state="alive"}})', "none"),
            number("Critical", f'sum(grpo_sentinel_findings{{{NODE}, severity="critical"}}) or vector(0)', "none"),
            number("Warnings", f'sum(grpo_sentinel_findings{{{NODE}, severity="warning"}}) or vector(0)', "none"),
            number("Silent for", f"time() - max(grpo_sentinel_rank_heartbeat_timestamp_seconds{{{NODE}}})", "s"),
            number("Sentinel problems", f"max(grpo_sentinel_problems{{{NODE}}})", "none"),
            Panel("Worst finding of each layer", (Query(WORST % ("layer", NODE, NODE, NODE), "{{layer}}"),), kind="state",
                  width=24, height=7, values=SEVERITIES, about="A layer that is not listed has no finding."),
            firing(),
        )),
        ("Data", (
            lines("Completion length", "none", (f"avg(grpo_sentinel_data_completion_length_mean{{{NODE}}})", "mean"),
                  (f"max(grpo_sentinel_data_completion_length_max{{{NODE}}})", "longest"), width=12, height=7),
            lines("Truncated and masked completions", "percentunit",
                  (f"avg(grpo_sentinel_data_truncated_ratio{{{NODE}}})", "truncated"),
                  (f"avg(grpo_sentinel_data_masked_completion_ratio{{{NODE}}})", "masked"), width=12, height=7),
        )),
        ("Reward", (
            lines("Reward", "none", (f"avg(grpo_sentinel_reward_mean{{{NODE}}})", "mean"),
                  (f"max(grpo_sentinel_reward_max{{{NODE}}})", "max"), (f"min(grpo_sentinel_reward_min{{{NODE}}})", "min"),
                  height=7),
            lines("Groups with equal rewards", "percentunit",
                  (f"avg(grpo_sentinel_reward_zero_std_ratio{{{NODE}}})", "equal"), height=7),
        )),
        ("Policy", (
            lines("Loss", "none", (f"avg(grpo_sentinel_policy_loss{{{NODE}}})", "loss"), width=8, height=7),
            lines("Entropy (nats)", "none", (f"avg(grpo_sentinel_policy_entropy_nats{{{NODE}}})", "entropy"), width=8,
                  height=7),
            lines("Divergence from the old policy (nats)", "none",
                  (f"avg(grpo_sentinel_policy_approx_kl_nats{{{NODE}}})", "approximate KL"), width=8, height=7),
        )),
        ("Gradient and optimizer", (
            lines("Gradient norm before clipping", "none", (f"max(grpo_sentinel_gradient_norm_preclip{{{NODE}}})", "norm"),
                  width=8, height=7),
            lines("Learning rate", "sci", (f"max(grpo_sentinel_optimizer_learning_rate{{{NODE}}})", "learning rate"),
                  width=8, height=7),
            lines("Skipped updates", "none", (f"max(grpo_sentinel_optimizer_skipped_updates_total{{{NODE}}})", "skipped"),
                  width=8, height=7),
        )),
        ("Memory, devices and time", (
            lines("Resident memory", "bytes", (f"max(grpo_sentinel_memory_rss_bytes{{{NODE}}})", "largest rank"), width=8,
                  height=7),
            lines("GPU utilization", "percentunit", (f"avg(grpo_sentinel_device_gpu_utilization_ratio{{{HOST}}})", "mean"),
                  (f"min(grpo_sentinel_device_gpu_utilization_ratio{{{HOST}}})", "lowest"), width=8, height=7),
            lines("Step time", "s", (f"max(grpo_sentinel_time_step_seconds{{{NODE}}})", "slowest rank"), width=8, height=7),
        )),
    ),
)

RANKS = Dashboard(
    "grpo-sentinel-ranks", "Ranks and stragglers", "Who is late, who is odd, who is gone.", ("run_id", "node", "rank"),
    (
        ("Life", (
            Panel("State", (Query(
                f'max by (rank) (1 * (grpo_sentinel_rank_state{{{RANK}, state="alive"}} > 0) '
                f'or 2 * (grpo_sentinel_rank_state{{{RANK}, state="closed"}} > 0) '
                f'or 3 * (grpo_sentinel_rank_state{{{RANK}, state="dead"}} > 0))', BY_RANK),), kind="state",
                values={"1": ("alive", "green"), "2": ("closed", "blue"), "3": ("dead", "red")}),
            lines("Steps behind the first rank", "none",
                  (f"max by (run_id) (grpo_sentinel_rank_step{{{NODE}}}) - on (run_id) group_right () "
                   f"grpo_sentinel_rank_step{{{RANK}}}", BY_RANK)),
            lines("Time since the last sign of progress", "s",
                  (f"time() - grpo_sentinel_rank_heartbeat_timestamp_seconds{{{RANK}}}", BY_RANK)),
            Panel("Phase now", (Query(f"max by (rank, node, phase) (grpo_sentinel_rank_phase{{{RANK}}})"),), "none", "table",
                  hidden=("Time", "Value")),
        )),
        ("Where the time goes", (
            by_rank("Time to the step vote: the late rank is high", "time_before_collective_seconds", "s"),
            by_rank("Wait in the step vote: the late rank is low", "time_vote_wait_seconds", "s"),
            by_rank("Step time", "time_step_seconds", "s"),
            lines("Time by phase, slowest rank", "s", (f"max by (phase) (grpo_sentinel_time_phase_seconds{{{RANK}}})",
                  "{{phase}}"), stack=True),
            by_rank("Waiting for data", "time_data_wait_seconds", "s"),
            lines("Throughput", "none", (f"sum(grpo_sentinel_time_tokens_per_second{{{RANK}}})", "completion tokens a second")),
        )),
        ("Who is odd", (
            lines("Deviation from the median of the ranks", "none",
                  (f"grpo_sentinel_sentinel_rank_deviation{{{RANK}}}", "{{vital}}, rank {{rank}}")),
            lines("Furthest rank", "none", (f"max by (vital) (grpo_sentinel_sentinel_odd_rank{{{NODE}}})", "{{vital}}"),
                  about="-1: all ranks are equal."),
            lines("Processor time of the rank's process", "percentunit",
                  (f"grpo_sentinel_device_rank_cpu_ratio{{{HOST}}}", BY_RANK)),
            by_rank("Steps without the other ranks: skew", "sentinel_frame_skew_steps", "none"),
        )),
    ),
)

GRADIENTS = Dashboard(
    "grpo-sentinel-gradients", "Gradients and optimizer", "Before clipping, after the update, by group and rank.",
    ("run_id", "node", "rank"),
    (
        ("Gradient", (
            lines("Norm before clipping and its limit", "none",
                  (f"grpo_sentinel_gradient_norm_preclip{{{RANK}}}", BY_RANK),
                  (f"max(grpo_sentinel_gradient_clip_limit{{{RANK}}})", "limit")),
            by_rank("Norm of what the rank holds", "gradient_norm_local"),
            lines("Size of elements", "sci", (f"avg(grpo_sentinel_gradient_abs_p50{{{RANK}}})", "median"),
                  (f"avg(grpo_sentinel_gradient_abs_p95{{{RANK}}})", "95 %"),
                  (f"avg(grpo_sentinel_gradient_abs_p99{{{RANK}}})", "99 %"),
                  (f"max(grpo_sentinel_gradient_abs_max{{{RANK}}})", "largest"), log=True),
            lines("Norm by group of parameters, ten largest", "none",
                  (f"topk(10, max by (group) (grpo_sentinel_gradient_group_norm{{{RANK}}}))", "{{group}}"), log=True),
            lines("Broken tensors", "none", (f"max(grpo_sentinel_gradient_nonfinite_tensors{{{RANK}}})", "not finite"),
                  (f"max(grpo_sentinel_gradient_zero_tensors{{{RANK}}})", "all zero"),
                  (f"max(grpo_sentinel_gradient_missing_tensors{{{RANK}}})", "missing")),
            lines("Clip coefficient", "percentunit", (f"min(grpo_sentinel_gradient_clip_coefficient{{{RANK}}})",
                  "share that is left")),
        )),
        ("Optimizer", (
            lines("Learning rate", "sci", (f"max(grpo_sentinel_optimizer_learning_rate{{{RANK}}})", "in use"),
                  (f"max(grpo_sentinel_optimizer_learning_rate_expected{{{RANK}}})", "by the schedule")),
            by_rank("Update over weight", "optimizer_update_ratio", "sci", log=True),
            by_rank("Weight norm", "optimizer_weight_norm"),
            lines("Moments", "sci", (f"max(grpo_sentinel_optimizer_moment1_norm{{{RANK}}})", "first"),
                  (f"max(grpo_sentinel_optimizer_moment2_norm{{{RANK}}})", "second"), log=True),
            lines("Skipped updates", "none",
                  (f"max by (rank) (grpo_sentinel_optimizer_skipped_updates_total{{{RANK}}})", "gate, rank {{rank}}"),
                  (f"max by (rank) (grpo_sentinel_optimizer_scaler_skips_total{{{RANK}}})", "loss scaler, rank {{rank}}")),
            by_rank("Weights that are not finite", "optimizer_nonfinite_weights", "none"),
        )),
    ),
)

REWARDS = Dashboard(
    "grpo-sentinel-rewards", "Rewards and policy", "What is rewarded, what the policy does with it.",
    ("run_id", "node", "rank"),
    (
        ("Reward", (
            by_rank("Mean reward", "reward_mean", "none"),
            by_rank("Standard deviation of the reward", "reward_std", "none"),
            lines("Mean of each function", "none", (f"avg by (func) (grpo_sentinel_reward_func_mean{{{RANK}}})", "{{func}}")),
            lines("Share of the variance", "percentunit",
                  (f"avg by (func) (grpo_sentinel_reward_func_variance_share{{{RANK}}})", "{{func}}")),
            lines("Groups that teach nothing", "percentunit",
                  (f"avg(grpo_sentinel_reward_zero_std_ratio{{{RANK}}})", "equal rewards"),
                  (f"avg(grpo_sentinel_reward_all_right_ratio{{{RANK}}})", "all right"),
                  (f"avg(grpo_sentinel_reward_all_wrong_ratio{{{RANK}}})", "all wrong")),
            lines("Rewards that are not finite", "none",
                  (f"max by (func) (grpo_sentinel_reward_func_nonfinite{{{RANK}}})", "{{func}}")),
            lines("Slowest call of each function", "s",
                  (f"max by (func) (grpo_sentinel_reward_func_latency_seconds{{{RANK}}})", "{{func}}")),
            by_rank("Correlation of reward and length", "reward_length_correlation", "none"),
        )),
        ("Advantages and loss", (
            lines("Advantage", "none", (f"avg(grpo_sentinel_policy_advantage_std{{{RANK}}})", "standard deviation"),
                  (f"max(grpo_sentinel_policy_advantage_abs_max{{{RANK}}})", "largest"),
                  (f"max(grpo_sentinel_policy_advantage_abs_bound{{{RANK}}})", "bound")),
            by_rank("Loss", "policy_loss", "none"),
        )),
        ("Policy", (
            lines("Entropy (nats)", "none", (f"grpo_sentinel_policy_entropy_nats{{{RANK}}}", BY_RANK)),
            lines("Divergence (nats)", "none", (f"avg(grpo_sentinel_policy_approx_kl_nats{{{RANK}}})", "from the old policy"),
                  (f"avg(grpo_sentinel_policy_kl_k3_nats{{{RANK}}})", "from the reference, k3")),
            lines("Importance ratio", "none", (f"avg(grpo_sentinel_policy_ratio_mean{{{RANK}}})", "mean"),
                  (f"max(grpo_sentinel_policy_ratio_max{{{RANK}}})", "largest")),
            lines("Clipped tokens", "percentunit", (f"avg(grpo_sentinel_policy_clip_low_ratio{{{RANK}}})", "low"),
                  (f"avg(grpo_sentinel_policy_clip_high_ratio{{{RANK}}})", "high")),
            lines("Rollout engine against trainer (nats)", "none",
                  (f"max(grpo_sentinel_policy_sampling_gap_max_nats{{{RANK}}})", "largest gap"),
                  (f"avg(grpo_sentinel_policy_sampling_gap_mean_nats{{{RANK}}})", "mean gap"),
                  about="Only where the trainer has a rollout engine of its own."),
            by_rank("Effective sample size", "policy_ess_ratio", "percentunit"),
        )),
        ("Completions", (
            lines("Length (tokens)", "none", (f"avg(grpo_sentinel_data_completion_length_mean{{{RANK}}})", "mean"),
                  (f"min(grpo_sentinel_data_completion_length_min{{{RANK}}})", "shortest"),
                  (f"max(grpo_sentinel_data_completion_length_max{{{RANK}}})", "longest")),
            lines("Repetition and duplicates", "percentunit",
                  (f"avg(grpo_sentinel_policy_repetition_ratio{{{RANK}}})", "repeated 4-grams"),
                  (f"avg(grpo_sentinel_data_duplicate_completion_ratio{{{RANK}}})", "duplicate completions"),
                  (f"avg(grpo_sentinel_data_truncated_ratio{{{RANK}}})", "truncated")),
        )),
    ),
)

DEVICES = Dashboard(
    "grpo-sentinel-devices", "Memory and devices", "Ranks, GPUs and hosts. GPU panels are empty where dcgm-exporter is used.",
    ("run_id", "node", "rank"),
    (
        ("Memory of the ranks", (
            by_rank("Resident memory", "memory_rss_bytes", "bytes"),
            lines("CUDA allocator", "bytes", (f"grpo_sentinel_memory_cuda_reserved_bytes{{{RANK}}}", "reserved, rank {{rank}}"),
                  (f"grpo_sentinel_memory_cuda_allocated_bytes{{{RANK}}}", "allocated, rank {{rank}}"),
                  about="Only on CUDA devices."),
            lines("Memory of the node and where it is heading", "percentunit",
                  (f"max by (node) (grpo_sentinel_device_memory_used_ratio{{{HOST}}})", "{{node}}"),
                  (f"clamp(max by (node) (predict_linear(grpo_sentinel_device_memory_used_ratio{{{HOST}}}[30m], 3600)), 0, 2)",
                   "{{node}} in an hour"), about="The line into the future means little in the first half hour of a run."),
            by_rank("Open files", "memory_open_files", "none"),
        )),
        ("GPUs", (
            lines("Utilization", "percentunit", (f"grpo_sentinel_device_gpu_utilization_ratio{{{HOST}}}", "{{node}} GPU {{gpu}}")),
            lines("Memory", "bytes", (f"grpo_sentinel_device_gpu_memory_used_bytes{{{HOST}}}", "{{node}} GPU {{gpu}}")),
            lines("Temperature", "celsius", (f"grpo_sentinel_device_gpu_temperature_celsius{{{HOST}}}", "{{node}} GPU {{gpu}}"),
                  width=8),
            lines("Power", "watt", (f"grpo_sentinel_device_gpu_power_watts{{{HOST}}}", "{{node}} GPU {{gpu}}"), width=8),
            lines("SM clock", "hertz", (f"grpo_sentinel_device_gpu_sm_clock_hertz{{{HOST}}}", "{{node}} GPU {{gpu}}"), width=8),
            lines("Xid errors", "none", (f"grpo_sentinel_device_xid_errors_total{{{HOST}}}", "{{node}} GPU {{gpu}}"), width=8),
            lines("ECC errors", "none",
                  (f"grpo_sentinel_device_gpu_ecc_uncorrected_total{{{HOST}}}", "uncorrected, {{node}} GPU {{gpu}}"),
                  (f"grpo_sentinel_device_gpu_ecc_corrected_total{{{HOST}}}", "corrected, {{node}} GPU {{gpu}}"), width=8),
            lines("Lost or slowed down", "none", (f"grpo_sentinel_device_gpu_lost{{{HOST}}}", "lost, {{node}} GPU {{gpu}}"),
                  (f"grpo_sentinel_device_gpu_hw_slowdown{{{HOST}}}", "slowed down, {{node}} GPU {{gpu}}"), width=8),
        )),
        ("Hosts", (
            lines("CPU", "percentunit", (f"grpo_sentinel_device_host_cpu_ratio{{{HOST}}}", "busy, {{node}}"),
                  (f"grpo_sentinel_device_host_iowait_ratio{{{HOST}}}", "waiting for disks, {{node}}"), width=8),
            lines("Disk used", "percentunit", (f"grpo_sentinel_device_disk_used_ratio{{{HOST}}}", "{{node}} {{path}}"), width=8),
            lines("Shared memory used", "percentunit", (f"grpo_sentinel_device_shm_used_ratio{{{HOST}}}", "{{node}}"), width=8),
        )),
    ),
)

INCIDENTS = Dashboard(
    "grpo-sentinel-incidents", "Incidents", "What fired when, on which rank, and what was asked of the run.", ("run_id", "node"),
    (
        ("Findings", (
            firing(),
            Panel("Findings over time", (Query(WORST % ("rule", NODE, NODE, NODE), "{{rule}}"),), kind="state", width=24,
                  height=12, values=SEVERITIES),
            Panel("Ranks with findings", (Query(WORST % ("rank", NODE, NODE, NODE), "rank {{rank}}"),), kind="state",
                  values=SEVERITIES),
            lines("NaN and infinite values", "none",
                  (f"sum by (signal, rank) (increase(grpo_sentinel_nonfinite_values_total{{{NODE}}}[5m]))",
                   "{{signal}}, rank {{rank}}"), about="Nothing is drawn while every value is finite."),
        )),
        ("Requests and bundles", (
            Panel("Request to checkpoint or halt", (Query(
                f'max by (node) (1 * (grpo_sentinel_halt_state{{{NODE}, state="none"}} > 0) '
                f'or 2 * (grpo_sentinel_halt_state{{{NODE}, state=~"requested|voted|checkpointing"}} > 0) '
                f'or 3 * (grpo_sentinel_halt_state{{{NODE}, state=~"done|finished"}} > 0) '
                f'or 4 * (grpo_sentinel_halt_state{{{NODE}, state=~"failed|refused"}} > 0))', "{{node}}"),), kind="state",
                values={"1": ("none", "text"), "2": ("under way", "orange"), "3": ("done", "green"),
                        "4": ("failed", "red")}),
            lines("Step agreed on", "none", (f"max(grpo_sentinel_halt_step{{{NODE}}})", "step")),
            lines("Incident bundles", "none", (f"sum(grpo_sentinel_daemon_incidents_open{{{HOST}}})", "open"),
                  (f"sum(grpo_sentinel_daemon_incidents_opened_total{{{HOST}}})", "opened")),
            lines("Rules that cannot judge", "none", (f"max by (node) (grpo_sentinel_rules_abstaining{{{NODE}}})", "{{node}}")),
        )),
    ),
)

FLEET = Dashboard(
    "grpo-sentinel-fleet", "Fleet", "Every run and every sidecar.", (),
    (
        ("Runs", (
            Panel("Runs", (
                Query("max by (run_id) (grpo_sentinel_rank_step)"),
                Query('sum by (run_id) (grpo_sentinel_rank_state{state="alive"})'),
                Query('sum by (run_id) (grpo_sentinel_findings{severity="critical"})'),
            ), "none", "table", 24, 8, hidden=("Time",),
                named={"Value #A": "step", "Value #B": "ranks alive", "Value #C": "critical findings"}),
            lines("Step of each run", "none", ("max by (run_id) (grpo_sentinel_rank_step)", "{{run_id}}"), width=8),
            lines("Findings that fire", "none", ("sum by (run_id, severity) (grpo_sentinel_findings)", "{{run_id}} {{severity}}"),
                  width=8),
            lines("Mean reward", "none", ("avg by (run_id) (grpo_sentinel_reward_mean)", "{{run_id}}"), width=8),
        )),
        ("Sidecars", (
            lines("Can be scraped", "none", ('max by (instance) (up{job="grpo-sentinel"})', "{{instance}}"), width=8),
            lines("Parts that are off or broken", "none", ("max by (node) (grpo_sentinel_problems)", "{{node}}"), width=8),
            lines("Memory of the sidecar", "bytes", ("max by (node) (grpo_sentinel_daemon_rss_bytes)", "{{node}}"), width=8),
            lines("Processor time of the sidecar", "percentunit",
                  ("sum by (node) (rate(grpo_sentinel_daemon_cpu_seconds_total[$__rate_interval]))", "{{node}}"), width=8),
            lines("Turn of its loop, 99 %", "s", ("max by (node) (grpo_sentinel_daemon_loop_seconds_p99)", "{{node}}"), width=8),
            lines("Lag of its sinks", "s", ("max by (node, sink) (grpo_sentinel_daemon_sink_lag_seconds)", "{{node}} {{sink}}"),
                  width=8),
            lines("Batches that sinks lost", "none",
                  ("sum by (node, sink, reason) (increase(grpo_sentinel_daemon_sink_dropped_total[5m]))",
                   "{{node}} {{sink}} {{reason}}"), width=8),
            lines("Records missed", "none", ("max by (node) (grpo_sentinel_daemon_missed_records_total)", "{{node}}"), width=8),
            lines("Cost in the trainer", "percentunit", ("max by (run_id) (grpo_sentinel_sentinel_agent_share)", "{{run_id}}"),
                  width=8),
        )),
    ),
)

DASHBOARDS = (OVERVIEW, RANKS, GRADIENTS, REWARDS, DEVICES, INCIDENTS, FLEET)
