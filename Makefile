# One way to do each thing. `make demo` and `make test` work on a fresh machine with Python 3.10 to 3.13.
#
#   make demo [FAULT=grad_nan] [KEEP=1] [COMPARE=1] [STEPS=200]   the product at work on a real 2-process TRL run
#   make test     the test suite          make lint     style           make types    type check
#   make bench    build/bench.json        make docs     generated docs  make clean    remove what was built

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --no-input
# pip's bars on a terminal, silence in a pipe
QUIET := $(shell [ -t 2 ] || echo -q)
CONSTRAINTS := requirements-test.txt

export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

FAULT ?= grad_nan
KEEP ?=
COMPARE ?=
STEPS ?=
# files of tests side by side; each test has directories, ports and processes of its own
PYTEST_ARGS ?= -n 2 --dist loadfile

.PHONY: help demo test test-light slow lint types bench faultbench chaos docs docs-check dashboards clean system-packages server-packages

help:
	@sed -n '3,6s/^#  *//p' Makefile

# torch first and by itself: another tool, or another package's dependency, would pick a different build
$(VENV)/.torch:
	@echo "setup 1/2: virtual environment and $(TORCH) (once; PyTorch is the large one)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13) and "grpo-sentinel needs Python 3.10 to 3.13, this is " + sys.version.split()[0] + "; choose another with make PYTHON=python3.11")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(QUIET) "$(TORCH)"
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml $(CONSTRAINTS)
	@echo "setup 2/2: grpo-sentinel and TRL (once)"
	@$(PIP) $(QUIET) -c $(CONSTRAINTS) -e '.[trl,stacks]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@echo "setup: test and lint tools (once)"
	@$(PIP) $(QUIET) -c $(CONSTRAINTS) -e '.[trl,stacks,test,dev]'
	@touch $@

# the fake NVML of the tests is compiled, and `top` is looked at in a terminal; without these the tests say what they skip
APT = apt-get update -qq && apt-get install -y -qq --no-install-recommends
CAN_APT = command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]
system-packages:
	@command -v cc >/dev/null || command -v gcc >/dev/null || { \
	  if $(CAN_APT); then $(APT) gcc libc6-dev; \
	  else echo "note: no C compiler and no permission to install one; the NVML tests will be skipped"; fi; }
	@command -v tmux >/dev/null || { \
	  if $(CAN_APT); then $(APT) tmux || echo "note: tmux cannot be installed; the tests of top will be skipped"; \
	  else echo "note: no tmux and no permission to install it; the tests of top will be skipped"; fi; }

demo: $(VENV)/.demo
	@$(PY) examples/demo/run.py --fault '$(FAULT)' $(if $(KEEP),--keep) $(if $(COMPARE),--compare) $(if $(STEPS),--steps $(STEPS))

test: $(VENV)/.test system-packages
	$(PY) -m pytest $(PYTEST_ARGS)

# what needs no torch (protocol, rules, history, sinks, daemon, command line), on any Python: make test-light PYTHON=python3.13
LIGHT = build/light-$(notdir $(PYTHON))
test-light:
	@test -x $(LIGHT)/bin/python || $(PYTHON) -m venv $(LIGHT)
	@$(LIGHT)/bin/python -m pip --disable-pip-version-check install --no-input $(QUIET) -c $(CONSTRAINTS) -e '.[test]'
	$(LIGHT)/bin/python -m pytest -m 'not torch and not slow and not gpu and not nightly' $(PYTEST_ARGS)

# the real Prometheus, Alertmanager and Chromium of the slow tests; without permission those tests are skipped and say so
SERVERS = prometheus prometheus-alertmanager chromium
server-packages:
	@command -v promtool >/dev/null && command -v amtool >/dev/null && command -v chromium >/dev/null || { \
	  if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends $(SERVERS); \
	  else echo "note: $(SERVERS) are not all installed and there is no permission to do it; their tests will be skipped"; fi; }

slow: $(VENV)/.test system-packages server-packages
	$(PY) -m pytest -m 'slow and not gpu and not nightly' $(PYTEST_ARGS)

lint: $(VENV)/.test
	$(PY) -m ruff check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/hadolint Dockerfile

types: $(VENV)/.test
	$(PY) -m mypy

bench: $(VENV)/.test
	@mkdir -p build
	$(PY) -m benchmarks

# known faults in real training, scored; MECHANISMS= and SEEDS= choose, REPORT=1 only scores what is stored
faultbench: $(VENV)/.test
	$(PY) -m benchmarks.faultbench $(if $(REPORT),--report,$(if $(MECHANISMS),,--healthy 2000 --synthetic 50000)) $(if $(MECHANISMS),--mechanisms '$(MECHANISMS)') $(if $(SEEDS),--seeds '$(SEEDS)')

# random faults against real ranks and a real sidecar; resumable: build/chaos.json. CHAOS_RUNS=, CHAOS_PARALLEL=
chaos: $(VENV)/.test
	$(PY) tests/chaos/chaos_series.py build/chaos.json

docs: $(VENV)/.demo
	$(PY) scripts/build_docs.py
	$(PY) -m grpo_sentinel.rules.document docs/rules

# the dashboards of deploy/grafana, from scripts/build_dashboards.py (Python 3.11 or newer)
dashboards: $(VENV)/.test
	$(PY) scripts/build_dashboards.py

docs-check: $(VENV)/.demo
	$(PY) scripts/build_docs.py --check

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
