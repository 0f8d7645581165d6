# Everything sets itself up: `make demo` and `make test` work on a bare machine with Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROCESSES ?= 2

.PHONY: help demo test test-slow lint docs format bench clean

help:
	@echo "make demo       fit the built-in graph, print the table, write the report page"
	@echo "make test       format, lint, types, the site and tests (minutes)"
	@echo "make test-slow  the tests that take longer"
	@echo "make lint       format, lint and types only"
	@echo "make docs       the documentation as a site: open site/index.html"
	@echo "make bench      speed and memory on this machine"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "h3gnn needs Python 3.11 or newer; try make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch -c constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt --editable ".[dev]"
	touch $@

demo: $(READY)
	$(BIN)/h3gnn demo --out h3gnn-demo.png

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: lint docs
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(PROCESSES)

test-slow: $(READY)
	$(BIN)/pytest -q -m slow

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python -W ignore -m benchmarks.cpu

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
