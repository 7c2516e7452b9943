# One command each: everything sets itself up in .venv, with the versions that were tested.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help quickstart test check lint types sanitize docs papers clean

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

quickstart: $(READY) ## install, then run the whole story on embedded data
	@$(BIN)/saltflat quickstart

# Tests run in WORKERS processes of one thread each; what compares times comes after them, one by one.
# Both are run and both must pass.
WORKERS ?= 2
TOGETHER = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

test: $(READY) lint types ## install, then lint, types and all tests
	@$(TOGETHER) -m "not alone"; first=$$?; $(BIN)/python -m pytest tests -m alone && exit $$first

check: $(READY) lint types ## lint, types and the quick tests only
	@$(TOGETHER) -m "not slow and not alone"

lint: $(READY) ## ruff
	@$(BIN)/ruff check src tests examples benchmarks docs/build
	@$(BIN)/ruff format --check src tests examples benchmarks docs/build

types: $(READY) ## mypy, strict
	@$(BIN)/mypy

sanitize: $(READY) ## the loops in C, compiled with checks of memory and arithmetic (gcc)
	@$(BIN)/python tests/engine/under_sanitizers.py

docs: $(READY) ## the documentation as HTML in site/; a broken link is an error
	@$(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

MINUTES ?= 60
papers: $(READY) ## run the papers' tables, cheapest first, as far as MINUTES=60 goes (DATA=folder), and write the page
	@$(BIN)/python benchmarks/papers/run.py --minutes $(MINUTES) $(if $(DATA),--data-dir $(DATA)) --page

# torch goes first and alone: with it installed in the tested version, nothing that follows can pull another build.
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
