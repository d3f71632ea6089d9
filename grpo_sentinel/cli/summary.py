"""What `launch` says at the end: what was found, what was kept, where to read on."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable
from pathlib import Path

from grpo_sentinel.config import Config
from grpo_sentinel.daemon.places import belongs_to, run_directories, state_dir
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting import HALTING
from grpo_sentinel.halting.journal import load
from grpo_sentinel.harm import first_onset, kept_before
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.incidents.places import ARCHIVE, archives, bundles, incidents_dir
from grpo_sentinel.protocol import RankReader, list_segments
from grpo_sentinel.protocol.places import squatted
from grpo_sentinel.records import Finding, FindingState, HaltState, Severity
from grpo_sentinel.views import chains
from grpo_sentinel.wording import counted

_MOST_FINDINGS = 5


def run_directory(root: Path, run_id: str, started_ns: int) -> Path | None:
    """Find the directory in which the launched command recorded last; None when nothing attached since it started."""
    for directory in run_directories([root]):
        if belongs_to(directory, run_id) and written_since(directory, started_ns):
            return directory
    return None


def written_since(directory: Path, started_ns: int) -> bool:
    """Tell whether a rank has made a segment there since."""
    for path in list_segments(directory):
        try:
            reader = RankReader(path)
        except SentinelError:
            continue
        created = reader.identity.created_wall_ns
        reader.close()
        if created >= started_ns:
            return True
    return False


def was_halted(root: Path, run_id: str, started_ns: int) -> bool:
    """Tell, from the rings alone, whether the sentinel halted the run: it works without a daemon.

    A rank says so when it closes its segment, or by the acknowledgement of a request that halts.
    """
    directory = run_directory(root, run_id, started_ns)
    if directory is None:
        return False
    halting = {entry.request_id for entry in load(directory) if entry.action in HALTING}
    for path in list_segments(directory):
        try:
            reader = RankReader(path)
        except SentinelError:
            continue
        closed, ack = reader.closed, reader.acknowledgement()
        created = reader.identity.created_wall_ns
        reader.close()
        if created < started_ns:  # of an earlier run of this name, with more ranks
            continue
        if closed is not None and closed.startswith("halted"):
            return True
        if closed is not None and closed.startswith("went on"):
            continue
        if ack is not None and ack.state is HaltState.DONE and ack.request_id in halting:
            return True
    return False


def write_summary(
    config: Config, root: Path, run_id: str, started_ns: int, code: int, *, halted: bool, say: Callable[[str], None],
    config_path: str | None = None,
) -> None:  # fmt: skip
    """Say in a few lines what came of the run; `code` is that of `launch`. A history that cannot be read is said.

    The commands that it names take the configuration in `config_path` where that moves state or rings.
    """
    moved = config.state_dir is not None or config.ring_dir is not None
    given = f" --config {shlex.quote(config_path)}" if config_path is not None and moved else ""
    directory = run_directory(root, run_id, started_ns)
    if directory is None:
        why = squatted(root)
        if config.agent.enabled and why is not None:
            say(f"run {run_id}: nothing was recorded: {root} {why}; set GRPO_SENTINEL_DIR to a directory of your own")
        elif config.agent.enabled and code == 0:
            say(
                f"run {run_id}: no trainer attached, nothing was watched; `grpo-sentinel doctor{given}` checks the "
                "installation, or call grpo_sentinel.attach(...) in the script"
            )
        return
    ended = f"run {directory.name} {'was halted' if halted else 'ended'} with exit code {code}"
    path = history_path(state_dir(config), socket.gethostname())
    try:
        with HistoryReader(path) as reader:
            if reader.run(directory.name) is None:
                raise SentinelError(f"the history {path} holds nothing of it; the lines of the sidecar say why")
            fired = _fired_since(reader, directory.name, started_ns)
            findings = [one for one in reader.findings(directory.name) if one.finding_id in fired]
            requests = [one for one in reader.requests(directory.name) if one.updated_wall_ns >= started_ns]
    except SentinelError as error:
        say(f"{ended}; no summary: {error}")
        return
    told = [finding for finding in findings if finding.severity > Severity.NOTE]
    say(f"{ended}; {_count(told)}")
    left_out = len(told)
    for cause, chain in chains(told)[:_MOST_FINDINGS]:
        say(f"  {cause.severity.name.lower()}, {cause.layer}, since step {cause.onset_step}: {cause.message}")
        follow = [one for one in chain if one.severity is Severity.CRITICAL][:_MOST_FINDINGS]
        for finding in follow:
            say(f"    then critical, {finding.layer}: {finding.message}")
        left_out -= 1 + len(follow)
    if left_out:
        say(f"  and {left_out} more; `grpo-sentinel report {directory.name}{given}` shows all")
    made = [one for one in requests if one.request_id and one.requested_wall_ns >= started_ns]
    if made:
        last = made[-1]
        what = last.action.name.lower().replace("_", "-")
        say(f"  request {last.request_id} ({what}) by {last.requested_by}: {last.state.name.lower()}"
            + (f" at step {last.step}" if last.step else "") + (f", {last.detail}" if last.detail else ""))  # fmt: skip
        if last.reason:
            say(f"    because {last.reason}")
    for dry in [one for one in requests if one.dry_run][-1:]:
        say(f"  {dry.detail} ({dry.reason})")
    kept = kept_before((one.pinned_checkpoint for one in requests), first_onset(findings))
    if kept:
        say(f"  kept from before the onset: {kept}; `grpo-sentinel pins{given}` lists and removes such copies")
    for where in incident_paths(config, directory.name, started_ns)[:_MOST_FINDINGS]:
        say(f"  incident: {where}; `grpo-sentinel incident show {where.name.removesuffix(ARCHIVE)}{given}`")
    say(f"  history: {path}; rings: {directory}")


def incident_paths(config: Config, run_id: str, started_ns: int) -> list[Path]:
    """Give the bundles of a run that were opened since it started, the oldest first."""
    root = incidents_dir(state_dir(config))
    opened = [
        (int(manifest["incident"].get("opened_wall_ns", 0)), path)
        for path, manifest in bundles(root)
        if manifest["incident"].get("run_id") == run_id
    ]
    packed = [(path.stat().st_mtime_ns, path) for path in archives(root) if path.name.startswith(f"{run_id}-")]
    return [path for wall_ns, path in sorted(opened + packed) if wall_ns >= started_ns]


def _fired_since(reader: HistoryReader, run_id: str, started_ns: int) -> set[str]:
    """Name what fired in this launch: what an earlier one of the same name left only resolves in it."""
    return {
        one.finding_id
        for one in reader.transitions(run_id)
        if one.state is FindingState.FIRING and one.wall_ns >= started_ns
    }


def _count(told: list[Finding]) -> str:
    if not told:
        return "nothing above a note was found"
    roots = len(chains(told))
    return f"{counted(len(told), 'finding')} with {counted(roots, 'root cause')}"
