# Every target does its own set-up: on a fresh machine with Python 3.11 or newer, `make demo` or
# `make test` alone is enough. torch comes in the build that constraints.txt pins.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
JOBS ?= 2
COUNT ?= 45
SECONDS ?= 60

.PHONY: demo test test-all coverage mutants fuzz lint format wheel docs man sample bench clean help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo: $(VENV)/.demo  ## set everything up and explain the sentence
	$(BIN)/attnviz explain "A cute teddy bear is reading"

test: $(VENV)/.dev  ## set everything up and run the tests
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(ARGS)

test-all: $(VENV)/.dev  ## the tests, and those that take minutes
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

# A child that is measured starts later and weighs more, so a test of time or memory may fail here;
# what counts is the share at the end, which must be 95 %.
coverage: $(VENV)/.dev  ## the tests, and which lines and branches no test passes
	rm -f build/coverage/data*
	-COVERAGE_FILE=$(CURDIR)/build/coverage/data \
		$(BIN)/coverage run -m pytest -n $(JOBS) -m "not slow" --ignore-glob='*_mutants.py' \
		--ignore=tests/core/test_mutants.py $(ARGS)
	$(BIN)/coverage combine -q --data-file=build/coverage/data build/coverage
	$(BIN)/coverage report --data-file=build/coverage/data

mutants: $(VENV)/.dev  ## break guards and formulas, COUNT breaks a file, and see who notices
	$(BIN)/python tests/mutation/run.py --count $(COUNT) --jobs $(JOBS) $(if $(RECORD),--record) $(ARGS)

lint: $(VENV)/.dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/.dev  ## build wheel and sdist twice into dist, and try the wheel in a clean environment
	$(BIN)/python tests/check_release.py dist

docs: $(VENV)/.dev  ## build the documentation into build/docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

man: $(VENV)/.dev  ## write the man page, docs/attnviz.1, from the command tree
	$(BIN)/python docs/man.py

sample: $(VENV)/.dev  ## train the bundled sample again
	$(BIN)/python sample_weights/train.py

bench: $(VENV)/.dev  ## time everything, side by side with its baselines
	$(BIN)/python -m benchmarks

fuzz: $(VENV)/.dev  ## damaged inputs of every kind for SECONDS=60, counted in tests/fuzz/counts.json
	PYTHONPATH=tests:. $(BIN)/python -m fuzz --seconds $(SECONDS) $(ARGS)

clean:  ## remove what the targets made
	rm -rf $(VENV) dist build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "attnviz needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev,docs,models,parquet]'
	@touch $@ $(VENV)/.demo
