"""What is secret goes, by name, form and value; what only looks like it stays."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from grpo_sentinel import cli, scrub

SECRET = "s3cr3t-Value.of_16+"
LEAKS = (
    f"HF_TOKEN={SECRET}", f"export AWS_SECRET_ACCESS_KEY='{SECRET}'", f'"api_key": "{SECRET}"', f"password: {SECRET}",
    f"python train.py --hub-token {SECRET} --steps 3", f"--hub_token={SECRET}", f"['--password', '{SECRET}']",
    f"Authorization: Bearer {SECRET}", f"{{'authorization': 'Basic {SECRET}'}}", f"https://ada:{SECRET}@host/x",
    f"bearer {SECRET}", f"WANDB_API_KEY={SECRET}", f"access_token={SECRET}&x=1", f"postgresql://{SECRET}@db/x",
)  # fmt: skip
HARMLESS = (
    "pad_token=<|endoftext|> eos_token: </s>", "max_tokens=128 completion_tokens: 17", "token_id=3", "PAD_TOKEN=0",
    "tokenizer: Qwen", "TOKENIZERS_PARALLELISM=false", "vocab token: 5", "sk-learn is not a key", "ratio 0.5 at 10:30",
    "rank 1, since step 20: a gradient is not finite", "https://host/path?x=1", "see http://127.0.0.1:9477/#findings",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(scrub, "_known", [])


@pytest.mark.parametrize("text", LEAKS)
def test_a_secret_is_told_by_its_name_or_its_form(text):
    assert SECRET not in scrub.scrub(text)
    assert scrub.REMOVED in scrub.scrub(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text):
    assert scrub.scrub(text) == text


def test_what_the_process_knows_is_removed_wherever_it_turns_up():
    scrub.learn_environment({
        "MY_PASSWORD": "only-a-word", "GRPO_SENTINEL_WEBHOOK_URL": "https://ada:hidden-pass@hooks/services/T1/B2/XYZ0123",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20header-value,x-team=7", "PATH": "/usr/bin/ordinary",
        "GRPO_SENTINEL_NOTIFY_URLS": "slack://aaaa/bbbb json://ada:other-pass@host", "SHORT_TOKEN": "no",
    })  # fmt: skip
    scrub.learn_settings({"http": {"read_token": "reading-token", "act_token_file": "/etc/act.token"}, "port": 9477,
                          "url": "http://ada:url-password@host", "list": [{"api_key": "listed-key"}]})  # fmt: skip
    told = ("only-a-word", "hidden-pass", "services/T1/B2/XYZ0123", "header-value", "other-pass", "reading-token",
            "url-password", "listed-key")  # fmt: skip
    text = scrub.scrub("; ".join(told) + "; no, /usr/bin/ordinary, /etc/act.token")
    assert text == "; ".join([scrub.REMOVED] * len(told)) + "; no, /usr/bin/ordinary, /etc/act.token"


def test_settings_keep_their_numbers_and_the_tokens_of_tokenizers():
    given = {"hub_token": SECRET, "pad_token": "<pad>", "token_budget": 17, "args": ["--hub-token", SECRET, "--x", "1"],
             "nested": [{"password": SECRET, "beta": 0.04}], "push_to_hub_token": None, "use_auth_token": True}  # fmt: skip
    assert scrub.without_secrets(given) == {
        "hub_token": scrub.REMOVED, "pad_token": "<pad>", "token_budget": 17,
        "args": ["--hub-token", scrub.REMOVED, "--x", "1"], "nested": [{"password": scrub.REMOVED, "beta": 0.04}],
        "push_to_hub_token": None, "use_auth_token": True,
    }  # fmt: skip


def test_a_crash_log_holds_neither_the_trainers_command_nor_a_secret(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["grpo-sentinel", "launch", "--", "train", "--private-thing", "of the user"])
    try:
        raise RuntimeError(f"401 for https://ada:{SECRET}@host")
    except RuntimeError:
        said = cli._crash_log()
    text = Path(said.rpartition(" ")[2]).read_text()
    assert "RuntimeError: 401 for https://(removed)@host" in text
    assert "grpo-sentinel launch\n" in text
    assert SECRET not in text
    assert "of the user" not in text


@pytest.mark.parametrize("run", ["x", "-", "--a", "a-", "http://", "HF_TOKEN_", "a.", "eyJaaaaaaaa.", "secret_"])
def test_the_tail_of_any_log_is_looked_at_in_moments(run):
    text = run * ((256 << 10) // len(run))
    before = time.process_time()
    scrub.scrub(text)
    assert time.process_time() - before < 10, "it would hold up an incident that is being written"


def test_a_password_in_an_address_is_found_whatever_comes_before_it():
    for before in ("", "x=", "\x1b[32m", "1", "_", "(", "git+"):
        assert "hunter2" not in scrub.scrub(f"{before}https://me:hunter2@host/x")
