# `make demo` and `make test` need Python 3.11 or newer and set up everything else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: demo test unit simulate check format bench constraints clean java

demo: $(VENV)/demo.stamp java
	$(BIN)/python -m examples.flights.demo

# Number of parallel test processes. Each has servers and a Spark session of its own; most of their time is waiting for processes.
TESTERS ?= 2
test: check
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder

# Fast tests only: no Spark, no processes.
unit: $(VENV)/test.stamp
	$(BIN)/python -m pytest tests/unit -q -n $(TESTERS) --dist loadfile --no-loadscope-reorder

# The whole system in virtual time, with faults: make simulate SEEDS=1000 FROM=0, or one seed with what happened: make simulate SEED=7 TRACE=1
SEEDS ?= 100
FROM ?= 0
simulate: $(VENV)/test.stamp
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --from $(FROM)) $(if $(TRACE),--trace)

check: $(VENV)/test.stamp java
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/test.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# make bench NAME=heartbeats runs one benchmark; make bench runs all of them and writes docs/benchmarks.md.
bench: $(VENV)/test.stamp java
	$(BIN)/python -m bench $(NAME)

java:
	@scripts/java

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "sluice: Python 3.11 or newer is required; select one with make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e '.[demo]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e '.[demo,test]'
	@touch $@ $(VENV)/demo.stamp

# Pins versions without the addresses of indexes; needs uv (pip install uv).
constraints:
	uv pip compile --quiet --all-extras --universal --python-version 3.11 --no-annotate --no-header \
	    --no-emit-index-url --no-emit-find-links pyproject.toml -o constraints.txt

clean:
	rm -rf .sluice .pytest_cache .mypy_cache .ruff_cache .hypothesis
