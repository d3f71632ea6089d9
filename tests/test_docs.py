"""What the documents say is so: every key, signal, command, target, link and example in them exists and works."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from grpo_sentinel.catalog import EVENTS, SIGNALS
from grpo_sentinel.cli import cli
from grpo_sentinel.config import Config, load_config
from grpo_sentinel.rules import load_rules
from grpo_sentinel.rules.profiles import builtin_profiles

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/guides/*.md")), ROOT / "examples/demo/README.md"]
_spec = importlib.util.spec_from_file_location("build_docs", ROOT / "scripts" / "build_docs.py")
build_docs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build_docs)


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    """Every fenced block of one language in every document."""
    for document in DOCUMENTS:
        for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL):
            if kind == language:
                yield document, text


def shell_lines() -> list[str]:
    lines = [line.strip() for kind in ("", "sh") for _, text in blocks(kind) for line in text.splitlines()]
    return [line for line in lines if line]


def test_the_generated_documents_say_what_the_code_says():
    assert build_docs.stale() == [], "run make docs"


def test_every_setting_is_in_the_example_and_in_the_reference():
    example = yaml.safe_load((ROOT / "config.example.yaml").read_text())
    reference = (ROOT / "docs" / "configuration.md").read_text()
    for key, field in build_docs.settings():
        node = example
        for part in key.split("."):
            assert part in node, f"{key} is missing in config.example.yaml"
            node = node[part]
        assert f"`{key}`" in reference, key
        assert field.description, f"{key} has no description"


def test_the_example_configuration_loads_to_exactly_the_defaults():
    assert load_config(ROOT / "config.example.yaml") == Config()


def test_a_setting_that_nobody_documented_is_noticed(tmp_path):
    for name in build_docs.DOCUMENTS:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((ROOT / name).read_text())
    assert build_docs.stale(tmp_path) == []
    text = (tmp_path / "config.example.yaml").read_text()
    (tmp_path / "config.example.yaml").write_text(text.replace("halted_exit_code: 83", "halted_exit_code: 84"))
    assert build_docs.stale(tmp_path) == ["config.example.yaml"]


def test_every_signal_and_event_is_documented():
    text = (ROOT / "docs" / "signals.md").read_text()
    for signal in SIGNALS.values():
        shown = f"{signal.name}[{signal.dimension}]" if signal.dimension else signal.name
        assert f"| `{shown}` |" in text, shown
    for event in EVENTS:
        assert f"| `{event}` |" in text, event


def test_every_rule_and_profile_is_documented():
    text = (ROOT / "docs" / "rules.md").read_text()
    for name in [rule.name for rule in load_rules()] + [profile.name for profile in builtin_profiles()]:
        assert f"| `{name}` |" in text, name


def test_every_command_line_in_the_documents_is_one_that_the_program_knows():
    seen = set()
    for line in shell_lines():
        if not line.startswith("grpo-sentinel "):
            continue
        words = shlex.split(line, comments=True)[1:]
        command = cli.get_command(click.Context(cli), words[0])
        assert command is not None, line
        seen.add(words[0])
        while isinstance(command, click.Group) and len(words) > 1 and not words[1].startswith("-"):
            inner = command.get_command(click.Context(command), words[1])
            if inner is None:
                break
            command, words = inner, words[1:]
        own = words[1 : words.index("--")] if "--" in words else words[1:]
        known = {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
        for word in own:
            assert word == "-" or not word.startswith("-") or word.partition("=")[0] in known, f"{word} in: {line}"
    assert seen >= {"launch", "run", "status", "halt", "checkpoint", "doctor"}


def test_every_command_of_the_program_stands_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for name in cli.list_commands(click.Context(cli)):
        assert f"grpo-sentinel {name}" in text, f"README.md does not show grpo-sentinel {name}"


def test_every_make_target_in_the_documents_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {match for document in DOCUMENTS for match in re.findall(r"\bmake ([a-z]+)\b", document.read_text())}
    used &= {line.split()[1] for line in shell_lines() if line.startswith("make ")} | targets
    assert {"demo"} <= used <= targets


def test_every_link_between_documents_leads_somewhere():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_python_example_compiles_and_uses_only_what_the_package_offers():
    import grpo_sentinel

    for document, text in blocks("python"):
        for node in ast.walk(ast.parse(text, str(document))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "grpo_sentinel":
                assert node.attr in grpo_sentinel.__all__, node.attr


@pytest.mark.torch
def test_every_method_of_the_agent_in_an_example_exists():
    from grpo_sentinel.agent import Agent, NullAgent

    for _, text in blocks("python"):
        for name in re.findall(r"\bagent\.(\w+)", text):
            assert hasattr(Agent, name), name
            assert hasattr(NullAgent, name), name


def test_every_yaml_example_is_a_valid_configuration(tmp_path):
    examples = list(blocks("yaml"))
    assert examples
    for number, (_, text) in enumerate(examples):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        load_config(path)
