"""What the page and the API are handed: plain callables, so that `web` knows no sink, no halting and no daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_sentinel.history import HistoryReader
from grpo_sentinel.records import Action
from grpo_sentinel.views import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertActions:
    """What alerts that Alertmanager posts may ask for; see `web.alertmanager_hook`."""

    by_name: Mapping[str, Action]
    """Alert name -> action."""

    labels: Mapping[str, str]
    """Labels that an alert must carry."""

    act: Callable[[str, Action, str, str], int]
    """As `WebState.act`, with who asks at the end."""

    only_say: bool = False
    """Ask nothing, say what would have been asked."""


class Incidents(Protocol):
    """The incidents that are kept, as plain data: `web` knows no bundle."""

    def heads(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """List the incidents of a run, the newest first: name, title, state, opened_wall_ns, onset_step, last_step."""
        ...

    def view(self, name: str) -> Mapping[str, Any] | None:
        """Give one in full: facts, findings, the walk backwards, series to plot; None when there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WebState:
    """All that the page shows and may ask for. Every callable may be called from any thread."""

    snapshots: Callable[[], Mapping[str, Snapshot]]
    """Newest snapshot by run id, the run to show first in front."""

    problems: Callable[[], Sequence[str]]
    """One sentence per part that is off or broken; empty means that /readyz says 200."""

    act: Callable[[str, Action, str], int]
    """Ask a run for an action with a reason; gives the request id. Raises `SentinelError` when it is refused."""

    act_token: str
    """Bearer token of everything that changes something; it may read as well."""

    metrics: Callable[[str], tuple[bytes, str]] | None = None
    """Accept header -> body and content type of /metrics; None when that is switched off."""

    history: Callable[[], HistoryReader] | None = None
    """Open the history for one query; may raise `HistoryError`. None when there is none."""

    read_token: str | None = None
    """With one, the page's data and the API need it; /metrics, health endpoints and the empty page stay open."""

    stuck: Callable[[], str] = str
    """Why the sidecar must be started again, as a loop that stands still; "" means that /livez says 200."""

    walk: Callable[[str], Mapping[str, Any] | None] | None = None
    """The walk backwards of a watched run as plain data, see `rules.walk.as_json`; None when it is not watched."""

    incidents: Incidents | None = None
    """None: incidents are not kept."""

    alerts: AlertActions | None = None
    """None: no alert of Alertmanager's is taken."""

    hosts: tuple[str, ...] = ()
    """Names in the Host header that are taken besides localhost and IP addresses."""
