# `make help` lists what there is. Every target sets up what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-ec2 test check e2e sim bench lock clean

PYTHON ?= python3
BIN := .venv/bin
FAST := not desktop and not slow and not e2e
# Tests of desktops and of processes that die mostly wait for them: twice as many as there are cores, up to eight.
WAITING := $(shell cores=$$(nproc); echo $$((cores < 4 ? 2 * cores : 8)))
MODE ?= process
OUT ?= runs/demo-$(shell date -u +%Y%m%dT%H%M%SZ)

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.ready: requirements.lock pyproject.toml scripts/setup-python
	@scripts/setup-python "$(PYTHON)"

setup: .venv/.ready  ## Install Python packages into .venv and the desktop's Debian packages
	@scripts/setup-desktop

demo: setup  ## Play every task with the oracle on LibreCAD and print the scores (MODE=shared, OUT=folder)
	@$(BIN)/autocad-bench-batch --config configs/local-demo.json --mode $(MODE) --output-dir "$(OUT)" --execute

demo-ec2: setup  ## The same batch on EC2 hosts of a stand-in AWS on this machine (MODE=shared, OUT=folder)
	@$(BIN)/python scripts/demo_ec2.py --mode $(MODE) --output-dir "$(OUT)"

check: .venv/.ready  ## The gate for each commit: format, lint, types, import rules, fast tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pytest -q -n auto --dist worksteal -m "$(FAST)"

test: setup  ## All tests but the end-to-end ones, on real desktops too
	@$(BIN)/pytest -q -n auto --dist worksteal -m "$(FAST)"
	@$(BIN)/pytest -q -n $(WAITING) --dist worksteal -m "(desktop or slow) and not e2e"

e2e: setup  ## Whole batches in both modes: on LibreCAD, adversaries, and on hosts and tunnels of a cloud that fail
	@$(BIN)/pytest -q -m e2e

sim: .venv/.ready  ## Whole batches with seeded faults in virtual time (SEED=n replays one)
	@AUTOCAD_BENCH_SIM_SEED="$(SEED)" $(BIN)/pytest -q tests/sim

bench: setup  ## Print what a turn, a desktop and a kill cost, beside their targets
	@$(BIN)/python scripts/bench_turn.py
	@$(BIN)/python scripts/bench_desktop.py
	@$(BIN)/python scripts/bench_kills.py

lock: .venv/.ready  ## Pin all packages again (needs uv)
	@scripts/lock

clean:  ## Remove the virtual environment and caches; run folders stay
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
