# Everything from a fresh checkout: `make demo` to see it work, `make test` to trust it.

SHELL := /bin/sh
PYTHON := .venv/bin/python
HOT := $(shell sed -n 's/^    "\(src.*\.py\)",$$/\1/p' setup.py)
JOBS ?= 2
CROWD := $(shell expr $(JOBS) + $(JOBS))

# Every node a test starts would otherwise compile all it imports, once more.
unexport PYTHONDONTWRITEBYTECODE

# How much of each sweep `make soak` does.
LINK_FRAMES ?= 100000
PACKETS ?= 1000000

.PHONY: demo test check fast lint docs-tables soak coverage compiled interpreted wheel bench clients clean help

help:
	@echo "make demo         set up, three nodes, a computation, Spark, two killed, a client moved, a Mosquitto joined, a crowd served"
	@echo "make test         everything: make check, then all live tests on the compiled node (about 16 minutes)"
	@echo "make check        lint, types, layers and the fast tests (about 2 minutes)"
	@echo "make soak         long sweeps: damaged packets (PACKETS=1000000) and damaged frames between nodes (LINK_FRAMES=100000)"
	@echo "make coverage     how much of each package the quick tests run, nodes in processes of their own included"
	@echo "make bench        the broker beside Mosquitto (about 6 minutes)"
	@echo "make clients      how long real clients are out when they are moved or their node dies (about 4 minutes)"
	@echo "make compiled     compile the hot modules; make interpreted: back to plain Python"
	@echo "make wheel        a wheel with compiled modules in dist/, installed into an empty environment and tried"
	@echo "make docs-tables  write the tables of docs/configuration.md from the settings"
	@echo "make clean        remove what the other targets made"

demo: compiled
	@$(PYTHON) -m sterna demo

# What keeps one core busy runs beside something else that does.  Tests of real processes mostly wait, so that there are
# twice as many at a time.
test: .venv/installed
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint .venv/spark.jsa .venv/javascript/installed
	@$(MAKE) --no-print-directory fast
	@$(MAKE) --no-print-directory compiled
	STERNA_TEST_COMPILED=1 $(PYTHON) -m pytest tests -m "slow or compiled" \
		-n $(CROWD) --dist loadfile --no-loadscope-reorder --durations 12

check: lint fast

# Interpreted, so that what is tested is what is read; the live tests then run the compiled node.
fast: interpreted .venv/installed
	$(PYTHON) -m pytest tests -m "not slow" --ignore tests/conformance --ignore tests/live --ignore tests/pipeline -n $(JOBS)

lint: .venv/installed
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports

docs-tables: .venv/installed
	$(PYTHON) -m sterna.runtime.config.reference docs/configuration.md

# What `make test` does briefly, at length; a failure names the seed that repeats it.
soak: compiled
	STERNA_TEST_COMPILED=1 STERNA_LINK_FRAMES=$(LINK_FRAMES) STERNA_LINK_SEED=$${STERNA_LINK_SEED:-$$(date +%s)} \
		STERNA_MUTATED_PACKETS=$(PACKETS) STERNA_MUTATED_SEED=$${STERNA_MUTATED_SEED:-$$(date +%s)} \
		$(PYTHON) -m pytest tests/node/test_mutated_links.py tests/live/test_mutated_packets.py -n $(JOBS)

# Interpreted: compiled modules cannot be measured.  Nodes that are killed with -9 leave no figures.
COVERED ?= tests -m "not slow" --ignore tests/pipeline
coverage: interpreted .venv/installed
	@rm -rf .venv/coverage && mkdir -p .venv/coverage
	$(PYTHON) -m coverage run -m pytest $(COVERED) -n $(JOBS) -q
	@$(PYTHON) -m coverage combine -q
	@$(PYTHON) -m coverage json -q -o - | $(PYTHON) scripts/coverage-table

bench: compiled
	$(PYTHON) -m sterna bench brokers

clients: compiled .venv/javascript/installed .venv/node-red/installed
	@$(PYTHON) scripts/real-clients

compiled: .venv/compiled

# Without a compiler nothing is built, and nothing breaks: the modules run interpreted.
.venv/compiled: .venv/installed setup.py $(HOT)
	@echo "Compiling the hot modules (a minute or two)"
	@find src -name '*.so' -delete
	@MYPYPATH=src $(PYTHON) setup.py -q build_ext --inplace >.venv/compile.log 2>&1 || true
	@find src -name '*.so' | grep -q . || \
		echo "Could not compile (see .venv/compile.log): running interpreted, at about half the speed."
	@find src -name '*.so' -exec touch {} +
	@touch $@

interpreted:
	@find src -name '*.so' -delete
	@rm -f .venv/compiled

# pip builds it from the tracked files, as it would for anybody: in an environment with nothing but [build-system].
wheel: .venv/installed
	STERNA_WHEEL=dist $(PYTHON) -m pytest tests/live/test_wheel.py

.venv/installed: pyproject.toml constraints.txt
	@scripts/system-parts
	@echo "Setting up .venv"
	@test -x $(PYTHON) || python3 -m venv .venv
	@$(PYTHON) -m pip install -q --disable-pip-version-check -c constraints.txt setuptools mypy
	@STERNA_INTERPRETED=1 $(PYTHON) -m pip install -q --disable-pip-version-check -c constraints.txt \
		--no-build-isolation -e '.[dev,experiments,images,pipeline]'
	@touch $@

# JVMs of tests start in half the time with it, and do without where it cannot be made.
.venv/spark.jsa: .venv/installed scripts/spark-classes
	@echo "Keeping Spark's classes for the tests"
	@$(PYTHON) scripts/spark-classes $@ >.venv/spark-classes.log 2>&1 || echo "Could not (see .venv/spark-classes.log)."

# The lock files name no registry: packages come from the one that npm is set up for.
.venv/javascript/installed: tests/live/javascript/package-lock.json
.venv/node-red/installed: tests/live/javascript/node-red/package-lock.json
.venv/javascript/installed .venv/node-red/installed: | .venv/installed
	@scripts/system-parts javascript
	@echo "Installing clients written in JavaScript into $(@D)"
	@mkdir -p $(@D) && cp $(<D)/package.json $(<D)/package-lock.json $(<D)/.npmrc $(@D)
	@npm ci --silent --fetch-retries 3 --prefix $(@D) && test -d $(@D)/node_modules && touch $@ || echo "Could not: live tests with these clients will fail."

clean: interpreted
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
