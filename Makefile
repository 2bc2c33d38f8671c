# Every target does its own set-up: on a fresh machine with Python 3.11 or newer, `make demo` or
# `make test` alone is enough. torch comes in the build that constraints.txt pins.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
JOBS ?= 2
COUNT ?= 45
SECONDS ?= 60

LOWEST := build/lowest
RUNTIME := build/runtime
TOOLS := build/tools
# Known faults that do not reach us, each with its reason; look again at every release.
# PYSEC-2026-3804: accelerate's load_checkpoint_in_model and load_checkpoint_and_dispatch follow paths
#   out of a folder; never called, as tests/design/test_dangerous_calls.py holds. No release mends it.
WAIVED := --ignore-vuln PYSEC-2026-3804

.PHONY: demo test browser test-all test-min coverage mutants fuzz sweep lint format wheel audit sbom docs man map sample bench clean help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo: $(VENV)/.demo  ## set everything up and explain the sentence
	$(BIN)/attnviz explain "A cute teddy bear is reading"

test: $(VENV)/.dev browser  ## set everything up and run the tests
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(ARGS)

# What the tests of pages and pictures need besides Python; nothing is asked of whoever has it.
browser:  ## bring Chromium, Firefox, Node.js, strace and a font with CJK for the tests, where apt-get can
	@sh tests/bring_programs.sh

test-all: $(VENV)/.dev browser  ## the tests, and those that take minutes
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
	$(BIN)/python tests/campaigns/mutation/run.py --count $(COUNT) --jobs $(JOBS) $(if $(RECORD),--record) $(ARGS)

test-min: $(BIN)/python  ## the tests with the lowest versions that pyproject.toml allows
	$(BIN)/python -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet -c tests/lowest/base.txt -e '.[parquet,docs,dev]'
	$(LOWEST)/bin/python -m pytest -n $(JOBS) -m "not slow" $(ARGS)
	$(LOWEST)/bin/python -m pip install --quiet -c tests/lowest/models.txt -e '.[models,parquet,dev]'
	$(LOWEST)/bin/python -m pytest -n $(JOBS) -m "not slow" $(ARGS)

lint: $(VENV)/.dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/.dev  ## build wheel and sdist twice into dist, and try the wheel in a clean environment
	$(BIN)/python tests/check_release.py dist

audit: $(RUNTIME)/.ready $(TOOLS)/.ready  ## known faults of what is installed with attnviz (asks an advisory service)
	$(BIN)/python -m pip --python $(RUNTIME) freeze --exclude attnviz | sed 's/+cpu$$//' > build/runtime.txt
	$(TOOLS)/bin/pip-audit --strict --no-deps --disable-pip -r build/runtime.txt $(WAIVED)

sbom: $(RUNTIME)/.ready $(TOOLS)/.ready  ## list what is installed with attnviz, as CycloneDX: build/sbom.json
	$(TOOLS)/bin/cyclonedx-py environment --output-reproducible -o build/sbom.json $(RUNTIME)/bin/python

docs: $(VENV)/.dev  ## build the documentation into build/docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

man: $(VENV)/.dev  ## write the man page, docs/attnviz.1, from the command tree
	$(BIN)/python docs/man.py

map: $(VENV)/.dev  ## write attnviz/README.md, one line per file of the package
	$(BIN)/python docs/map.py

sample: $(VENV)/.dev  ## train the bundled sample again
	$(BIN)/python sample_weights/train.py

bench: $(VENV)/.dev  ## time everything, side by side with its baselines
	$(BIN)/python -m benchmarks

fuzz: $(VENV)/.dev  ## damaged inputs of every kind for SECONDS=60, counted in tests/campaigns/fuzz/counts.json
	PYTHONPATH=tests:tests/campaigns:. $(BIN)/python -m fuzz --seconds $(SECONDS) $(ARGS)

sweep: $(VENV)/.dev  ## every text architecture built tiny: exact or refused, every tensor accounted for; about an hour
	@mkdir -p build
	PYTHONPATH=tests $(BIN)/python tests/campaigns/architectures/sweep.py > build/sweep.jsonl
	PYTHONPATH=tests $(BIN)/python tests/campaigns/architectures/accounting.py > build/accounts.jsonl
	$(BIN)/python tests/campaigns/architectures/keep.py build/sweep.jsonl build/accounts.jsonl

clean:  ## remove what the targets made
	rm -rf $(VENV) dist build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "attnviz needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUNTIME)/.ready: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m venv --clear --without-pip $(RUNTIME)
	$(BIN)/python -m pip --python $(RUNTIME) install --quiet -c constraints.txt '.[models,parquet]'
	rm -f $(RUNTIME)/lib/python3.*/site-packages/attnviz-*/direct_url.json # where on this machine it came from
	@touch $@

$(TOOLS)/.ready: $(BIN)/python
	$(BIN)/python -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet pip-audit cyclonedx-bom
	@touch $@

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev,docs,models,parquet]'
	$(PIP) -e '.[ray]' || echo "ray has no wheel for this Python: its engine is not tested"
	@touch $@ $(VENV)/.demo
