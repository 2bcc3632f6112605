# Everything a newcomer needs: `make demo`, `make test`. Set-up happens by itself, once.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
STAMP := pyproject.toml constraints.txt

MINUTES ?= 60

.PHONY: help demo test test-all browser faults lint bench clean

help:
	@echo "make demo      see the library at work (table, pictures and report in runs/demo/)"
	@echo "make test      lint, types, import contract and the quick tests"
	@echo "make test-all  the same, with the slow tests"
	@echo "make faults    an hour of kills, damage and forgery (MINUTES=60)"
	@echo "make bench     the CPU benchmarks"
	@echo "make clean     remove .venv and runs/"

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch comes first and pinned: left to itself pip would resolve the newest build with gigabytes of CUDA packages.
.venv/.core: $(STAMP) | .venv/bin/python
	@echo "Installing polyscore into .venv (once) ..."
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@$(PIP) --editable .
	@touch $@

.venv/.dev: $(STAMP) .venv/.core
	@echo "Installing the test tools into .venv (once) ..."
	@$(PIP) --editable ".[dev]"
	@touch $@

demo: .venv/.core
	$(BIN)/polyscore demo

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The label page's test drives Debian's chromium; where it cannot be installed, that test says so and is skipped.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get -qq update >/dev/null 2>&1 && apt-get -qq install -y chromium >/dev/null 2>&1; } \
		|| echo "no chromium, and none could be installed: the label page is not tested in a browser"

test: lint browser
	$(BIN)/pytest -n 2 -m "not slow"

test-all: lint browser
	$(BIN)/pytest -n 2

faults: .venv/.dev
	$(BIN)/python tests/faults/long.py --minutes $(MINUTES)

bench: .venv/.dev
	$(BIN)/python benchmarks/analytic_cell.py

clean:
	rm -rf .venv runs
