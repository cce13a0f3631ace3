# Two commands matter: `make demo` and `make test`. Each makes what it needs.
# PYTHON=python3.12 chooses the interpreter, VENV=folder the virtual environment.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=

BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all lint check format bench constraints clean

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

install: $(DEV) ## .venv with everything, development tools included

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"paretune needs Python 3.11 or later; $(PYTHON) is {v.major}.{v.minor} (choose with: make PYTHON=python3.12 ...)")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Made again only when the dependencies change, or the virtual environment is gone.
$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $(RUNTIME) $@

demo: $(RUNTIME) ## the quickstart sweep, its front, a pick
	@if $(BIN)/paretune status quickstart > /dev/null 2>&1; \
	then set -x; $(BIN)/paretune sweep --resume quickstart; \
	else set -x; $(BIN)/paretune sweep configs/quickstart.yaml; fi
	$(BIN)/paretune front quickstart
	$(BIN)/paretune pick quickstart --knee
	$(BIN)/paretune export quickstart --to yaml -o PICK.yaml
	@echo
	@echo 'The pick is in PICK.yaml. What to do next:'
	@echo '  $(BIN)/paretune ui quickstart      every trial and the chart of the front, in the browser'
	@echo '  $(BIN)/paretune train PICK.yaml    train the configuration that was picked'

test: $(DEV) ## all tests but the campaigns
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: $(DEV) ## all tests, those that take minutes too
	$(BIN)/python -m pytest -m '' $(PYTEST_ARGS)

lint: $(DEV) ## format, ruff, types, import arrows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test ## what CI runs

format: $(DEV) ## formats the code in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV) ## lists the benchmarks; BENCH=name runs one
ifdef BENCH
	$(BIN)/python benchmarks/$(BENCH).py
else
	@echo 'make bench BENCH=name, where name is one of:'
	@ls benchmarks | sed -n 's/\.py$$//p' | sed 's/^/  /'
endif

constraints: $(DEV) ## constraints.txt from what the virtual environment holds now
	@{ sed -n '/^#/p' constraints.txt; \
	   $(BIN)/python -m pip freeze --exclude-editable | sed 's/+[A-Za-z0-9.]*$$//'; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## removes the virtual environments and what tools left; sweeps and mlflow.db stay
	rm -rf .venv .venv-ci build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
