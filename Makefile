# Everything sets itself up: `make demo` and `make test` work on a bare machine with Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
PROCESSES ?= 2
TABLE ?= $(if $(ARGS),,all)

.PHONY: help demo test tests test-slow lint docs format bench reproduce clean

help:
	@echo "make demo       fit the built-in graph, print the table, write the report page"
	@echo "make test       format, lint, types, the site and tests (minutes)"
	@echo "make test-slow  the tests that take longer"
	@echo "make lint       format, lint and types only"
	@echo "make docs       the documentation as a site: open site/index.html"
	@echo "make bench      speed and memory on this machine"
	@echo "make reproduce  the paper's tables: TABLE=classification (default: all), QUICK=1, DEVICE=cuda, ARGS=..."

# what the program needs; pip's own bars show that it downloads
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "h3gnn needs Python 3.11 or newer; try make PYTHON=python3.12 …")'
	@echo "installing h3gnn into $(VENV), once; torch is large, so this takes some minutes …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt --editable .
	@touch $@

# what developing it needs beyond that
$(TOOLS): $(READY)
	@echo "installing the tools for developing into $(VENV), once …"
	@$(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt --editable ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/h3gnn demo --out h3gnn-demo.png

lint: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(TOOLS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: $(TOOLS)
	$(MAKE) --jobs=2 docs lint tests

tests: $(TOOLS)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(PROCESSES) --dist worksteal

test-slow: $(TOOLS)
	$(BIN)/pytest -q -m slow

format: $(TOOLS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(TOOLS)
	$(BIN)/python -W ignore -m benchmarks.cpu

reproduce: $(READY)
	$(BIN)/python -W ignore -m reproduction $(TABLE) $(if $(QUICK),--quick) $(if $(DEVICE),--device $(DEVICE)) $(ARGS)

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
