"""The sidecar with every sink on and every far end dead: half of them refuse, half of them never answer.

The load is that of `bench_daemon`. W&B, MLflow and OTLP clients are processes of their own and not counted.

dead_sinks_cpu             share of one core                                                 promised: below 0.15
dead_sinks_rss             resident memory at the end                                        promised: below 120 MiB
dead_sinks_request_*       from a record that breaks a rule to the control file              as without sinks
"""

from __future__ import annotations

import importlib.util
import json
import socket
from collections.abc import Callable

from benchmarks.bench_daemon import CONFIG, MAX_P99_MS, measured, percentile

MAX_CPU, MAX_RSS_MIB = 0.15, 120.0
ALWAYS = ("history", "prometheus", "jsonl", "tensorboard", "alertmanager", "webhook", "otlp")
OPTIONAL = {"notify": "apprise", "wandb": "wandb", "mlflow": "mlflow"}


def main(record: Callable[..., None]) -> None:
    """Measure and hand the figures to `record(name, value, unit)`; raises when a promise is broken."""
    silent = socket.create_server(("127.0.0.1", 0), backlog=512)  # connects, and nobody ever answers
    refusing = socket.create_server(("127.0.0.1", 0))
    silent_url, refusing_url = (f"http://127.0.0.1:{one.getsockname()[1]}" for one in (silent, refusing))
    refusing.close()
    names = [*ALWAYS, *(name for name, module in OPTIONAL.items() if importlib.util.find_spec(module))]
    sinks = {name: {"enabled": True} for name in names}
    sinks["alertmanager"] |= {"url": silent_url}
    sinks["otlp"] |= {"endpoint": refusing_url}
    if "mlflow" in sinks:
        sinks["mlflow"] |= {"tracking_uri": refusing_url}
    environment = {
        "GRPO_SENTINEL_WEBHOOK_URL": refusing_url, "WANDB_BASE_URL": silent_url, "WANDB_API_KEY": "0" * 40,
        "GRPO_SENTINEL_NOTIFY_URLS": silent_url.replace("http://", "json://"),
    }  # fmt: skip
    with silent:
        cpu, rss_mib, delays = measured(f"{CONFIG}sinks: {json.dumps(sinks)}\n", environment)
    p99 = percentile(delays, 99) * 1e3
    record("dead_sinks_cpu", cpu, "share of a core", peer="promised at most", peer_value=MAX_CPU)
    record("dead_sinks_rss", rss_mib, "MiB", peer="promised at most", peer_value=MAX_RSS_MIB)
    record("dead_sinks_request_median", percentile(delays, 50) * 1e3, "ms")
    record("dead_sinks_request_p99", p99, "ms", peer="promised at most", peer_value=MAX_P99_MS)
    if cpu > MAX_CPU or rss_mib > MAX_RSS_MIB or p99 > MAX_P99_MS:
        raise RuntimeError(f"promise broken: {cpu:.3f} of a core, {rss_mib:.0f} MiB, request p99 {p99:.0f} ms")


if __name__ == "__main__":
    from benchmarks.record import record as store

    main(store)
