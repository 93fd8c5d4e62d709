# `make demo` and `make test` need Python 3.11 or later and make: they set up an environment in .venv first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help demo test test-slow bench-check lint docs format clean

help:
	@echo "make demo         train one agent under three schemes, about two minutes"
	@echo "make test         the tests that take seconds"
	@echo "make test-slow    the tests that take minutes"
	@echo "make bench-check  whether a hot loop costs more than it did, under a minute"
	@echo "make lint         style and types"
	@echo "make docs         the documentation site, into site/"
	@echo "make format       lay the code out"
	@echo "make clean        delete the environment and all caches; runs are kept"

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,docs]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python examples/demo.py

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

bench-check: $(INSTALLED)
	$(BIN)/python benchmarks/check.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)  # not --quiet: a warning that is not shown is not counted
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
