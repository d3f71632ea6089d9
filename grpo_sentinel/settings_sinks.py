"""Settings of the sinks: where records and findings go, one section each."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from grpo_sentinel.settings_section import Section

SeverityName = Literal["note", "warning", "critical"]


class HistoryConfig(Section):
    """The SQLite store under the state directory that `status` and the page read."""

    enabled: bool = Field(True, description="keep records, findings and requests in SQLite")
    retention_days: float = Field(30.0, gt=0, description="older runs are deleted")
    max_bytes: int = Field(2_000_000_000, ge=1_000_000, description="size above which the oldest records go first")
    flush_seconds: float = Field(1.0, gt=0, description="time between two commits")


class PrometheusConfig(Section):
    """The `/metrics` end point of the sidecar."""

    enabled: bool = Field(True, description="serve /metrics")
    stale_seconds: float = Field(300.0, gt=0, description="series of a rank or GPU silent for so long are dropped")
    gpu_metrics: bool = Field(True, description="show GPU figures; false where dcgm-exporter shows them already")


class QueueConfig(Section):
    """The bounded queue in front of every sink."""

    size: int = Field(1000, ge=1, description="batches a sink may lag behind; the oldest is dropped and counted")
    timeout_seconds: float = Field(10.0, gt=0, description="a write that takes longer marks the sink as hanging")
    retries: int = Field(3, ge=0, description="tries of one batch after a failure")


class JsonlConfig(Section):
    """One JSON object a line: records, events, findings, samples and requests, in files that rotate by size."""

    enabled: bool = Field(False, description="write JSON lines")
    directory: str | None = Field(None, description="where the files of all runs go; default <state_dir>/jsonl")
    max_bytes: int = Field(100_000_000, ge=4096, description="size at which the file of a run is set aside")
    keep_files: int = Field(5, ge=0, le=1000, description="files set aside that are kept; the oldest goes first")


class TensorBoardConfig(Section):
    """Event files that TensorBoard shows: one directory per run and rank, findings as text."""

    enabled: bool = Field(False, description="write TensorBoard event files")
    directory: str | None = Field(None, description="log directory; default <state_dir>/tensorboard")
    ranks: Literal["all", "first"] = Field("all", description="whose signals are written: every rank's, or the first's")
    max_bytes: int = Field(200_000_000, ge=4096, description="size at which the next event file of a rank begins")


class AlertmanagerConfig(Section):
    """Firing findings, posted to Alertmanager's API v2 and posted again before they would run out."""

    enabled: bool = Field(False, description="post findings to Alertmanager")
    url: str = Field("http://127.0.0.1:9093", description="address of Alertmanager, without /api/v2")
    severity: SeverityName = Field("warning", description="least severity that is posted")
    repost_seconds: float = Field(60.0, gt=0, description="time between two posts of the same alert")
    timeout_seconds: float = Field(5.0, gt=0, le=60, description="longest wait for an answer")
    token_env: str | None = Field(None, description="environment variable that holds a bearer token")
    token_file: str | None = Field(None, description="file that holds a bearer token")
    page_url: str | None = Field(
        None, description="address of the sidecar's page, for the link in an alert; default where it listens"
    )
    labels: dict[str, str] = Field(
        default_factory=dict, description="labels of every alert, the same as external_labels of your Prometheus"
    )


class WebhookConfig(Section):
    """Findings grouped by their first cause, posted as JSON in the shape of Alertmanager's webhook, version 4."""

    enabled: bool = Field(False, description="post findings to a URL")
    url_env: str | None = Field("GRPO_SENTINEL_WEBHOOK_URL", description="environment variable that holds the URL")
    url_file: str | None = Field(None, description="file that holds the URL; goes before the variable")
    token_env: str | None = Field(None, description="environment variable that holds a bearer token")
    token_file: str | None = Field(None, description="file that holds a bearer token; goes before the variable")
    severity: SeverityName = Field("warning", description="least severity that is posted")
    group_wait_seconds: float = Field(1.0, ge=0, description="wait for consequences before a new group is sent")
    group_interval_seconds: float = Field(30.0, ge=0, description="least time between two messages about one group")
    timeout_seconds: float = Field(5.0, gt=0, le=60, description="longest wait for an answer")
    page_url: str | None = Field(
        None, description="address of the sidecar's page, for the link in a message; default where it listens"
    )


class NoteRoute(Section):
    """Channels that get every finding."""

    urls_env: str | None = Field(None, description="environment variable with apprise URLs, parted by white space")
    urls_file: str | None = Field(None, description="file with apprise URLs, one a line; goes before the variable")


class WarningRoute(NoteRoute):
    """Channels that get warnings and critical findings."""

    urls_env: str | None = Field(
        "GRPO_SENTINEL_NOTIFY_URLS", description="environment variable with apprise URLs, parted by white space"
    )


class CriticalRoute(NoteRoute):
    """Channels that get critical findings only."""


class NotifyConfig(Section):
    """Messages to Slack, Discord, mail, PagerDuty and others through apprise (`pip install '.[notify]'`)."""

    enabled: bool = Field(False, description="send messages about findings")
    group_wait_seconds: float = Field(1.0, ge=0, description="wait for consequences before a new group is sent")
    group_interval_seconds: float = Field(30.0, ge=0, description="least time between two messages about one group")
    timeout_seconds: float = Field(5.0, gt=0, le=60, description="longest wait for one channel's answer")
    quiet_hours: str | None = Field(
        None,
        pattern=r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$",
        description="time of day in UTC, as 22:00-07:00, in which only critical findings are sent; others wait",
    )
    page_url: str | None = Field(
        None, description="address of the sidecar's page, for the link in a message; default where it listens"
    )
    note: NoteRoute = NoteRoute()
    warning: WarningRoute = WarningRoute()
    critical: CriticalRoute = CriticalRoute()


class TrackerConfig(Section):
    """What every tracker in a child process has."""

    enabled: bool = Field(False, description="run the tracker, in a process of its own")
    ranks: Literal["all", "first"] = Field("all", description="whose signals are sent: every rank's, or the first's")
    spool_bytes: int = Field(16_000_000, ge=65536, description="what may wait for the tracker; the oldest is dropped")
    exit_seconds: float = Field(4.0, gt=0, description="what waits is handed over for so long at the end")


class WandbConfig(TrackerConfig):
    """Weights & Biases: a run of its own in the trainer's group. The API key comes from WANDB_API_KEY or netrc."""

    project: str = Field("grpo-sentinel", description="project of the run")
    entity: str | None = Field(None, description="user or team; default as the API key says")
    group: str | None = Field(None, description="group of the run; default the id of the watched run")
    mode: Literal["online", "offline"] = Field("online", description="offline only writes to disk, for `wandb sync`")
    directory: str | None = Field(None, description="where the runs' files go; default <state_dir>/wandb")
    incidents: bool = Field(True, description="send incident bundles as artifacts")
    init_timeout_seconds: float = Field(10.0, gt=0, description="no server by then: the run goes offline")
    finish_timeout_seconds: float = Field(3.0, gt=0, description="what is not sent by then stays on disk")


class MlflowConfig(TrackerConfig):
    """MLflow: a run of its own, or the trainer's. Credentials come from MLflow's own environment variables."""

    tracking_uri: str | None = Field(None, description="tracking server; default MLFLOW_TRACKING_URI")
    experiment: str = Field("grpo-sentinel", description="experiment of the run, made when missing")
    run_id: str | None = Field(None, description="log into this existing run, as the trainer's own")
    parent_run_id: str | None = Field(None, description="MLflow run that the run is nested under")
    incidents: bool = Field(True, description="send incident bundles as artifacts")
    timeout_seconds: float = Field(5.0, gt=0, description="longest wait for one answer of the server")
    retries: int = Field(1, ge=0, description="tries of the client after a failure, before the sink's own")


class OtlpConfig(TrackerConfig):
    """OpenTelemetry over HTTP: signals as metrics, findings as logs. Headers come from OTEL_EXPORTER_OTLP_HEADERS."""

    endpoint: str | None = Field(
        None, description="address without /v1/...; default OTEL_EXPORTER_OTLP_ENDPOINT, else http://127.0.0.1:4318"
    )
    compression: Literal["gzip", "none"] = Field("gzip", description="how bodies are packed")
    timeout_seconds: float = Field(5.0, gt=0, le=60, description="longest wait for one answer of the collector")


class SinksConfig(Section):
    """Where records and findings go."""

    queue: QueueConfig = QueueConfig()
    history: HistoryConfig = HistoryConfig()
    prometheus: PrometheusConfig = PrometheusConfig()
    jsonl: JsonlConfig = JsonlConfig()
    tensorboard: TensorBoardConfig = TensorBoardConfig()
    alertmanager: AlertmanagerConfig = AlertmanagerConfig()
    webhook: WebhookConfig = WebhookConfig()
    notify: NotifyConfig = NotifyConfig()
    wandb: WandbConfig = WandbConfig()
    mlflow: MlflowConfig = MlflowConfig()
    otlp: OtlpConfig = OtlpConfig()
    external: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="sinks of other packages that are on: entry point name -> its settings"
    )
