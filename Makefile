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

.PHONY: demo test check fast lint man docs docs-tables soak coverage compiled interpreted wheel minimal-debian contrib bench \
	brokers clients dashboard dashboard-check parts clean help

help:
	@echo "make demo         set up, three nodes, a computation, Spark, two killed, a client moved, a Mosquitto joined, a crowd served"
	@echo "make test         everything: make check, then all live tests on the compiled node (about half an hour, likewise)"
	@echo "make check        lint, types, layers and the fast tests (about 3 minutes on two quiet cores)"
	@echo "make soak         long sweeps: damaged packets (PACKETS=1000000) and damaged frames between nodes (LINK_FRAMES=100000), all kills of Spark's jobs on a cluster"
	@echo "make coverage     how much of each package the quick tests run, nodes in processes of their own included"
	@echo "make bench        the broker beside Mosquitto (about 6 minutes)"
	@echo "make clients      how long real clients are out when they are moved or their node dies (about 4 minutes)"
	@echo "make brokers      networks of all brokers of other makes that can be had, at least five (about 15 minutes; root for all)"
	@echo "make compiled     compile the hot modules; make interpreted: back to plain Python"
	@echo "make wheel        a wheel with compiled modules in dist/, installed into an empty environment and tried"
	@echo "make man          manual pages of all commands in build/man/man1"
	@echo "make dashboard    build the dashboard's page from dashboard/ (needs Node; its result is tracked, so nobody else does)"
	@echo "make minimal-debian  as root: that wheel on a Debian made by debootstrap"
	@echo "make contrib      lint the Dockerfile, the compose file and the Helm chart"
	@echo "make docs         the documentation as a site in site/"
	@echo "make docs-tables  write the tables of docs/configuration.md from the settings"
	@echo "make clean        remove what the other targets made"

demo: compiled
	@$(PYTHON) -m sterna demo

# What keeps one core busy runs beside something else that does.  Tests of real processes mostly wait, so that there are
# twice as many at a time.
test: .venv/installed
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint .venv/spark.jsa .venv/javascript/installed \
		.venv/foreign/installed .venv/prometheus/installed .venv/docs/installed .venv/contrib/installed dashboard-check parts
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

man: .venv/installed
	$(PYTHON) -m sterna.cli.man_pages build/man/man1

docs-tables: .venv/installed
	$(PYTHON) -m sterna.runtime.config.reference docs/configuration.md

# What `make test` does briefly, at length; a failure names the seed that repeats it.
soak: compiled
	STERNA_TEST_COMPILED=1 STERNA_KILL_PAIRS=all STERNA_LINK_FRAMES=$(LINK_FRAMES) STERNA_LINK_SEED=$${STERNA_LINK_SEED:-$$(date +%s)} \
		STERNA_MUTATED_PACKETS=$(PACKETS) STERNA_MUTATED_SEED=$${STERNA_MUTATED_SEED:-$$(date +%s)} \
		$(PYTHON) -m pytest tests/node/test_mutated_links.py tests/live/test_mutated_packets.py \
		tests/pipeline/test_kill_matrix.py tests/pipeline/test_bench.py -n $(JOBS)

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

# Without a compiler nothing is built, and nothing breaks: the modules run interpreted.  With one they have to compile.
.venv/compiled: .venv/installed setup.py $(HOT)
	@echo "Compiling the hot modules (a minute or two)"
	@find src -name '*.so' -delete
	@STERNA_COMPILED=1 MYPYPATH=src $(PYTHON) setup.py -q build_ext --inplace >.venv/compile.log 2>&1 || \
		{ tail -n 20 .venv/compile.log; echo "The hot modules do not compile; .venv/compile.log has more."; exit 1; } >&2
	@find src -name '*.so' | grep -q . || \
		echo "No C compiler, or no headers of Python (python3-dev): running interpreted, at about half the speed."
	@find src -name '*.so' -exec touch {} +
	@touch $@

interpreted:
	@find src -name '*.so' -delete
	@rm -f .venv/compiled

# pip builds it from the tracked files, as it would for anybody: in an environment with nothing but [build-system].
wheel: .venv/installed
	STERNA_WHEEL=dist $(PYTHON) -m pytest tests/live/test_wheel.py

# The version is in the package: what is installed has to say the same.
.venv/installed: pyproject.toml constraints.txt src/sterna/__init__.py
	@scripts/system-parts
	@echo "Setting up .venv"
	@test -x $(PYTHON) || python3 -m venv .venv
	@$(PYTHON) -m pip install -q --disable-pip-version-check -c constraints.txt setuptools mypy
	@STERNA_INTERPRETED=1 $(PYTHON) -m pip install -q --disable-pip-version-check -c constraints.txt \
		--no-build-isolation -e '.[connect,dev,experiments,images,pipeline,telemetry]'
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

# Brokers of other makes that install in seconds.  STERNA_FOREIGN_BROKERS may name another directory like it.
.venv/foreign/installed: tests/live/brokers.txt .venv/javascript/installed | .venv/installed
	@echo "Installing brokers of other makes into $(@D)"
	@mkdir -p $(@D) && ln -sfn ../javascript $(@D)/js && python3 -m venv $(@D)/py && \
		$(@D)/py/bin/pip install -q --disable-pip-version-check -r $< && touch $@ || \
		echo "Could not: interworking is tested with fewer brokers, and pytest names those that are missing."

.venv/foreign/debian: scripts/unpack-brokers
	@echo "Unpacking brokers of Debian's into $@"
	@scripts/unpack-brokers $@

# Everything that `make test` does with some brokers, with all of them.
brokers: compiled .venv/foreign/installed .venv/foreign/debian
	STERNA_BROKERS=all STERNA_TEST_COMPILED=1 $(PYTHON) -m pytest tests/live/test_interworking.py \
		tests/live/test_interworking_proxy.py tests/live/test_interworking_proxy_faults.py \
		tests/live/test_interworking_faults.py -n $(JOBS) --dist loadfile --timeout 1200 --durations 12

# The site, from docs/, the pages at the top and the code.  A link or heading that does not exist is an error.
docs: .venv/docs/installed
	@$(PYTHON) scripts/docs-pages .venv/docs-pages
	@NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build --strict
	@echo "site/index.html"

.venv/docs/installed: docs/site/requirements.txt | .venv/installed
	@echo "Setting up the tools that build the documentation"
	@python3 -m venv .venv/docs && .venv/docs/bin/pip install -q --disable-pip-version-check -r $< && touch $@ || \
		echo "Could not: the documentation cannot be built."

# Dockerfile, compose file and Helm chart, checked with tools that have an environment of their own.
contrib: .venv/contrib/installed
	.venv/contrib/bin/python scripts/check-contrib

.venv/contrib/installed: contrib/requirements.txt | .venv/installed
	@echo "Setting up the tools that check contrib/"
	@python3 -m venv .venv/contrib && .venv/contrib/bin/pip install -q --disable-pip-version-check -r $< && touch $@ || \
		echo "Could not: contrib/ cannot be linted."

# As root: the wheel on debootstrap's minimal Debian.
minimal-debian: wheel
	scripts/minimal-debian

# Without it the tests of contrib/prometheus and contrib/grafana are skipped, and say so; with CI=true they fail.
.venv/prometheus/installed: scripts/prometheus | .venv/installed
	@echo "Unpacking Prometheus for the tests"
	@mkdir -p $(@D) && scripts/prometheus $(@D) >$(@D)/log 2>&1 && touch $@ || echo "Could not (see $(@D)/log)."

# The page is tracked as it is built, so that a node can be installed from a checkout without Node.
ASSETS := src/sterna/runtime/dashboard/assets
dashboard: .venv/dashboard
	cd dashboard && npm run -s check && npm run -s build

# Types, lint, and that what is tracked is what the sources give.  With CI=true they have to be checked.
dashboard-check: .venv/dashboard
	@test -d dashboard/node_modules || { echo "The dashboard's sources are not checked."; \
		case "$$CI" in ""|0|false) exit 0;; *) exit 1;; esac; } && \
		cd dashboard && npm run -s check && npm run -s build -- ../.venv/dashboard-built && \
		diff -r ../.venv/dashboard-built ../$(ASSETS) || { echo "run: make dashboard" >&2; exit 1; }

# One after the other: apt waits for nobody.
.venv/dashboard: dashboard/package-lock.json | .venv/installed .venv/javascript/installed
	@scripts/system-parts javascript
	@echo "Installing what the dashboard is built with"
	@npm ci --silent --fetch-retries 3 --prefix dashboard && touch $@ || \
		{ rm -rf dashboard/node_modules; echo "Could not: the dashboard cannot be built."; }

# Tests of the dashboard, of unit files and of manual pages are left out where these are missing, and fail with CI=true.
parts: | .venv/dashboard .venv/prometheus/installed
	@scripts/system-parts tests || echo "Tests that need them are left out."

clean: interpreted
	rm -rf .venv site dashboard/node_modules build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
