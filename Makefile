# `make demo` and `make test` need Python 3.11 or newer and set up everything else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
# Images often set it. Without bytecode, every process of a test run compiles all modules and rewrites the assertions of all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-kafka demo-late test test-long test-under-load test-s3a unit simulate matrix matrix-kafka check check-format check-lint check-types check-layers format bench screenshots docs docs-serve reference dist constraints clean java

# With KEEP=1 the coordinator is started again afterwards, so that its pages can be looked at, until Ctrl-C.
demo: $(VENV)/demo.stamp java
	$(BIN)/python -m examples.flights.demo $(if $(KEEP),--stay)

# Number of parallel test processes; most of their time is waiting for other processes. See OneSpark in tests/conftest.py.
TESTERS ?= 3
# make test TESTS=tests/spark runs the tests of a folder.
TESTS ?=
test: check $(VENV)/classes.stamp
	$(BIN)/python -m pytest -n $(TESTERS) --durations=10 $(TESTS)

# Fast tests only: no Spark, no processes. A worker for each core: each looks at all tests first.
unit: $(VENV)/test.stamp
	$(BIN)/python -m pytest tests/unit -q -n logical --maxprocesses 4

# Longer variants of other tests, which `make test` leaves out.
test-long: $(VENV)/test.stamp $(VENV)/classes.stamp
	$(BIN)/python -m pytest -m long -n $(TESTERS)

# The same beside a program that keeps all cores busy: no test may depend on the speed of the machine. With TESTS as above.
test-under-load: $(VENV)/test.stamp
	$(BIN)/python -m tests.support.load $(MAKE) test

# Checkpoints of scripts on s3a://. Downloads jars of 660 MB, so CI does not run it.
test-s3a: $(VENV)/test.stamp java
	SLUICE_TEST_S3A=1 $(BIN)/python -m pytest -q tests/attached/test_s3a_checkpoints.py

# The whole system in virtual time, with faults: new seeds with make simulate SEEDS=1000, or one with what happened: make simulate SEED=7 TRACE=1
# See docs/simulation.md for FROM, ONLY, NO_SHRINK, COVERAGE, YEAR, SCRIPTS and FAULTS.
SEEDS ?= 100
VERBS := coordinator/drains,coordinator/fleet,coordinator/jobmodels,coordinator/runs,coordinator/snapshots,containers/agent,containers/state
simulate: $(VENV)/test.stamp
ifdef FAULTS
	$(BIN)/python -m tests.simulation.removed_fixes $(filter-out 1,$(FAULTS))
else ifdef COVERAGE
	$(BIN)/python -m coverage run --data-file=$(VENV)/simulation.coverage --concurrency=greenlet --source=$(VERBS) \
	    -m tests.simulation --workers 1 --seeds $(SEEDS) $(if $(FROM),--from $(FROM))
	$(BIN)/python -m coverage report --show-missing --data-file=$(VENV)/simulation.coverage
	$(BIN)/python -m tests.simulation.coverage_report $(VENV)/simulation.coverage
else ifdef SCRIPTS
	$(BIN)/python -m tests.simulation.scripts --seeds $(SEEDS) $(if $(FROM),--from $(FROM))
else ifdef YEAR
	$(BIN)/python -m tests.simulation.year $(if $(filter-out 1,$(YEAR)),--days $(YEAR))
else
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) $(if $(FROM),--from $(FROM))) $(if $(ONLY),--only $(ONLY)) \
	    $(if $(TRACE),--trace) $(if $(NO_SHRINK),--no-shrink)
endif

# The four run at once, and each prints its output when it ends.
check: $(VENV)/test.stamp java
	@$(MAKE) --no-print-directory --jobs=4 --keep-going --output-sync check-types check-layers check-format check-lint

check-format:
	$(BIN)/ruff format --check .

check-lint:
	$(BIN)/ruff check .

check-types:
	$(BIN)/mypy

check-layers:
	$(BIN)/lint-imports

format: $(VENV)/test.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The demo on Kafka. A consumer of another library confirms the output.
demo-kafka: $(VENV)/demo.stamp java
	$(BIN)/python -m examples.flights.demo --system kafka

# Two demos, each with a container that starts a minute late. The totals must be exact.
demo-late: $(VENV)/demo.stamp java
	$(BIN)/python -m examples.flights.demo --late 60 --month-limit 3
	$(BIN)/python -m examples.weather.demo --late 60 --month-limit 3

# make bench NAME=heartbeats runs one benchmark, and with RECORD=1 replaces its row of docs/benchmarks.md; make bench runs all of them and
# writes the page.
bench: $(VENV)/test.stamp java
	$(if $(RECORD),RECORD=1) $(BIN)/python -m bench $(NAME)

# The pictures of the web pages in the docs: wide and narrow, light and dark. Look at them after a change of a page.
screenshots: $(VENV)/test.stamp
	$(BIN)/python -m tests.support.screenshots docs/pages

# The documentation as a site. A warning, such as a dead link, is an error.
docs: $(VENV)/test.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "the site is in .sluice/site: make docs-serve shows it"

docs-serve: docs
	cd .sluice/site && ../../$(BIN)/python -m http.server --bind 127.0.0.1 8000

# The pages of docs/reference, from the code.
reference: $(VENV)/test.stamp
	$(BIN)/python scripts/reference.py

# A wheel and an sdist in .sluice/dist.
dist: $(VENV)/test.stamp
	rm -rf .sluice/dist
	$(BIN)/python -m build --outdir .sluice/dist
	$(BIN)/python -m twine check --strict .sluice/dist/*

# Archives of Spark's classes, with which the containers and scripts of tests start with less CPU. Without them they start more slowly.
$(VENV)/classes.stamp: $(VENV)/test.stamp | java
	-$(BIN)/sluice class-archive
	-$(BIN)/python -m tests.support.script_archive 2>/dev/null
	@touch $@

java:
	@scripts/java

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "sluice: Python 3.11 or newer is required; select one with make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e '.[demo,spark]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e '.[demo,docs,spark,test]'
	@touch $@ $(VENV)/demo.stamp

# The tests that use Spark, with several versions of it, each in an environment of its own: make matrix SPARKS="3.5.9 4.3.0"
# With another Python: make matrix PYTHON=python3.13 SPARKS=4.3.0. Versions before 4.2 run the tests of scripts only.
SPARKS ?= 3.5.9 4.0.5 4.1.4 4.2.0 4.3.0
MATRIX := .matrix/$(notdir $(PYTHON))
OF_SCRIPTS := tests/attached tests/processes/test_attach.py tests/processes/test_script_backups.py tests/processes/test_script_drain.py
OF_JOBS := tests/spark
matrix: java $(SPARKS:%=$(MATRIX)-%/done)
	for version in $(SPARKS); do \
	    case $$version in 3.* | 4.[01].*) tests="$(OF_SCRIPTS)" ;; *) tests="$(OF_SCRIPTS) $(OF_JOBS)" ;; esac; \
	    env -u SPARK_HOME $(MATRIX)-$$version/bin/python -m pytest -q -p no:cacheprovider -m 'long or not long' $$tests || exit 1; \
	done

# Tests of transactions with the oldest and the newest release of Kafka: make matrix-kafka KAFKAS=3.9.0
KAFKAS ?= 2.5.0 4.4.0
matrix-kafka: $(VENV)/test.stamp java
	for version in $(KAFKAS); do \
	    SLUICE_TEST_KAFKA_VERSION=$$version $(BIN)/python -m pytest -q -p no:cacheprovider \
	    tests/integration/streams/test_kafka_transactions.py tests/integration/streams/test_kafka_steps.py \
	    tests/spark/test_kafka_on_spark.py tests/attached/test_kafka_writer.py || exit 1; \
	done

$(MATRIX)-%/done: pyproject.toml constraints.txt scripts/spark-environment
	scripts/spark-environment $(MATRIX)-$* $* $(PYTHON)
	@touch $@

# Pins versions without the addresses of indexes; needs uv (pip install uv).
constraints:
	uv pip compile --quiet --all-extras --universal --python-version 3.11 --no-annotate --no-header \
	    --no-emit-index-url --no-emit-find-links pyproject.toml -o constraints.txt

clean:
	rm -rf .sluice .pytest_cache .mypy_cache .ruff_cache .hypothesis
