# Everything runs in a private environment, .venv. `make demo` and `make test` need only Python 3.11+ and Java 17+.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SECONDS ?= 60
MUTANTS ?= 100
SEED ?= 1
SEEDS ?= 20
STEPS ?= 40
PROFILE ?= mixed
.DEFAULT_GOAL := help
# Where Python may not write bytecode, each of the many processes of the tests compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo chaos quick test test-all coverage lint check format bench soak simulate fuzz mutants lock clean

help:
	@echo "make demo    set up and show what Omnigraph does"
	@echo "make quick   set up and run the tests that need no S3 server, no Spark, no processes: under 3 minutes"
	@echo "make test    set up and run all tests"
	@echo "make test-all  run all tests on every supported Python that is found"
	@echo "make coverage  run all tests and report which lines of src/ they reach"
	@echo "make lint    check format, lint, types, imports"
	@echo "make check   make lint, then make test"
	@echo "make bench   run the benchmarks"
	@echo "make soak    search long: a load of six million records with planted defects, properties with many examples"
	@echo "make chaos   real faults: power cuts, failing system calls, clocks, a bad network, kills; KILLS=, CUTS=, ONLY=, ..."
	@echo "make simulate  run SEEDS=$(SEEDS) random histories of STEPS=$(STEPS) steps with faults; SEED=7 runs one again"
	@echo "make fuzz    fuzz the languages for SECONDS=$(SECONDS)"
	@echo "make mutants  change the code that commits in MUTANTS=$(MUTANTS) small ways, and report which ones the tests do not notice"
	@echo "make setup   build .venv only;  make format  rewrite files;  make lock  renew the lock files"

# The environment is rebuilt whenever what it is built from changes. The demo needs half of it.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
setup: $(VENV)/.done
$(VENV)/.done: $(VENV)/.runtime requirements-dev.lock
	$(INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/.runtime: requirements.lock pyproject.toml scripts/preflight.py
	@$(PYTHON) scripts/preflight.py
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(VENV)/.runtime
	@$(BIN)/python -m examples.demo

# The graphs of tests are small and many: they live in memory where it has room for them. A file's tests, and all that
# use Spark, share servers and sessions, so they stay together; the tests are sorted with the longest groups first.
ROOM := $(shell df -k --output=avail /dev/shm 2>/dev/null | awk 'NR > 1 && $$1 > 8000000 {print "TMPDIR=/dev/shm"}')
PYTEST := $(ROOM) $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

test: setup
	$(PYTEST)

# What each marker means is in pyproject.toml; a test gets most of them by itself.
quick: setup
	$(PYTEST) -m "not s3 and not process and not spark and not docs and not slow"

PYTHONS := python3.11 python3.12 python3.13
# A shim of pyenv is on the path also where it starts nothing, so each is tried; then the versions that pyenv has.
test-all:
	@for name in $(PYTHONS); do \
		found=; \
		for python in $$name "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$${name#python}.*/bin/python; do \
			if "$$python" -c '' 2> /dev/null; then found=$$python; break; fi; \
		done; \
		if [ -z "$$found" ]; then echo "$$name is not on this machine"; continue; fi; \
		$(MAKE) PYTHON=$$found VENV=.venv-$$name test || exit 1; \
	done

# Lines that run in processes of their own are counted too, see [tool.coverage.run].
coverage: setup
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-report=html

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup .peers/.done
	$(BIN)/python benchmarks/lang.py
	$(BIN)/python benchmarks/commit.py
	$(BIN)/python -m benchmarks.group
	$(BIN)/python benchmarks/history.py
	$(BIN)/python benchmarks/mutate.py
	$(BIN)/python benchmarks/merge.py
	$(BIN)/python -m benchmarks.branching
	$(BIN)/python benchmarks/maintenance.py
	$(BIN)/python benchmarks/backup.py
	$(BIN)/python benchmarks/convert.py
	$(BIN)/python -m benchmarks.cold
	$(BIN)/python -m benchmarks.server
	$(BIN)/python -m benchmarks.load
	$(BIN)/python -m benchmarks.query
	$(BIN)/python -m benchmarks.search

# What we are compared with has an environment of its own; one that cannot be had is left out of the comparison.
PEERS := kuzu==0.11.3 ladybug==0.22.0 duckdb==2.0.0 lancedb==0.40.0
.peers/.done:
	$(PYTHON) -m venv .peers
	-for peer in $(PEERS); do .peers/bin/python -m pip install --quiet --disable-pip-version-check $$peer; done
	@touch $@

# Six million records with a thousand defects of every kind; then every property, with thousands of examples instead of tens.
soak: setup
	OMNIGRAPH_SOAK=1 $(BIN)/python -m pytest -n 0 tests/ingest/test_planted_defects.py tests/maintenance/test_upkeep_soak.py \
		tests/server/test_contract_fuzz.py tests/server/test_raw_http_fuzz.py tests/commit/test_power_cuts.py \
		tests/simulation/test_simulation.py tests/query/test_growth.py tests/query/test_permutations.py \
		tests/query/test_differential.py tests/spark/test_stream_sink.py
	OMNIGRAPH_HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -n 2 -m hypothesis

# Real faults of the machine, outside the tests. It reports what it skips and why; the variables are the options of the program.
chaos: setup
	$(BIN)/python -m tests.chaos $(foreach name,ONLY CUTS FAULTS JUMPS REQUESTS INTERRUPTS KILLS WRITERS COMMITS,\
		$(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) $($(name))))

# Whole histories with faults, against a model; FROM= is the first seed, PROFILE=merges, alone or s3 chooses other steps.
simulate: setup
	$(ROOM) $(BIN)/python -m tests.simulation --steps $(STEPS) --profile $(PROFILE) \
		$(if $(filter file,$(origin SEED)),--seeds $(SEEDS) --from $(or $(FROM),0),--seed $(SEED))

# The fuzzer comes as a binary for Linux on common Python versions only, so it is not part of the environment.
fuzz: setup
	$(INSTALL) atheris==3.0.0
	$(BIN)/python tests/fuzz/fuzz_lang.py -max_total_time=$(SECONDS)

# cosmic-ray makes the mutants; it has an environment of its own.
mutants: setup .mutants/.done
	$(ROOM) nice .mutants/bin/python -m tests.mutants.run --mutants $(MUTANTS) --seed $(SEED)

.mutants/.done:
	$(PYTHON) -m venv .mutants
	.mutants/bin/python -m pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0
	@touch $@

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	pyproject.toml --extra editable --extra all
lock: setup
	$(INSTALL) uv==0.13.7
	$(LOCK) -o requirements.lock
	$(LOCK) --constraint requirements.lock --extra dev -o requirements-dev.lock

clean:
	rm -rf .venv .venv-* .coverage* htmlcov .peers .mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
