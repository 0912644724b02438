# Two commands are enough: make demo, make test. Both set up what they need the first time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DATA ?= locomo10.json

.DEFAULT_GOAL := help
.PHONY: help demo test lint format replay bench scaling chaos fuzz lock clean

help: ## Say what there is
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

$(READY): pyproject.toml requirements.lock requirements-leann.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-leann.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(READY) ## Show the main job on embedded defaults
	@$(BIN)/memory-tasks demo

test: $(READY) ## Run all tests with coverage; nothing but this machine is needed
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --fail-under=95

lint: $(READY) ## Check format, style and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(READY) ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

replay: $(READY) ## Send LoCoMo conversations through a running worker: make replay DATA=path/to/locomo10.json
	@$(BIN)/python -m benchmarks.replay $(DATA)

bench: $(READY) ## Measure against the bare floor and, with DATA, beside other memories
	@BENCH_DATA=$(DATA) $(BIN)/python -m benchmarks.bench

scaling: $(READY) ## Measure search from 10 to 1,000,000 turns, half an hour; writes docs/scaling.*
	@BENCH_DATA=$(DATA) $(BIN)/python -m benchmarks.bench scaling

chaos: $(READY) ## Break everything for a quarter of an hour and count what is lost
	@$(BIN)/python -m tests.chaos

fuzz: $(READY) ## Send 100,000 malformed messages and ledger entries, five minutes
	@$(BIN)/python -m tests.fuzz 100000

lock: ## Pin every dependency anew, for all platforms and Pythons
	uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --output-file requirements.lock pyproject.toml
	# LEANN without what it needs only to embed texts itself (torch and more, 6 GB): we give it vectors.
	printf 'leann-core>=0.3.8,<0.4\nleann-backend-ivf>=0.3.6,<0.4\n' | uv pip compile --quiet --no-deps --universal \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	  --output-file requirements-leann.lock -

clean: ## Remove what was made
	rm -rf $(VENV) .coverage* .mypy_cache .ruff_cache .hypothesis
