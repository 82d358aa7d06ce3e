# Everything from a fresh checkout: `make demo` to see it work, `make test` to trust it.

SHELL := /bin/sh
PYTHON := .venv/bin/python
HOT := $(shell sed -n 's/^    "\(src.*\.py\)",$$/\1/p' setup.py)
JOBS ?= 2
APART := --ignore tests/conformance --ignore tests/live

.PHONY: demo test check lint compiled interpreted bench clean help

help:
	@echo "make demo         set up, three nodes, a computation, Spark watching, two killed, a client moved, nothing lost"
	@echo "make test         everything: make check, then all live tests on the compiled node (about 17 minutes)"
	@echo "make check        lint, types, layers and the fast tests (about 2 minutes)"
	@echo "make bench        the broker beside Mosquitto (about 6 minutes)"
	@echo "make compiled     compile the hot modules; make interpreted: back to plain Python"
	@echo "make clean        remove what the other targets made"

demo: compiled
	@$(PYTHON) -m sterna demo

# Spark starts one machine of its own per process, so its quick tests share one; the slow ones start their own anyway.
test: check compiled .venv/spark.jsa
	STERNA_TEST_COMPILED=1 $(PYTHON) -m pytest tests/conformance tests/live -n $(JOBS) --dist loadfile
	$(PYTHON) -m pytest tests/pipeline -m "not slow"
	$(PYTHON) -m pytest tests -m slow $(APART) -n $(JOBS) --durations 12

# Interpreted, so that what is tested is what is read; the live tests then run the compiled node.
check: lint interpreted
	$(PYTHON) -m pytest tests -m "not slow" $(APART) --ignore tests/pipeline -n $(JOBS)

lint: .venv/installed
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports

bench: compiled
	$(PYTHON) -m sterna bench brokers

compiled: .venv/compiled

# Without a compiler nothing is built, and nothing breaks: the modules run interpreted.
.venv/compiled: .venv/installed setup.py $(HOT)
	@echo "Compiling the hot modules (a minute or two)"
	@find src -name '*.so' -delete
	@MYPYPATH=src $(PYTHON) setup.py -q build_ext --inplace >.venv/compile.log 2>&1 || \
		echo "Could not compile (see .venv/compile.log): running interpreted, at about half the speed."
	@find src -name '*.so' -exec touch {} +
	@touch $@

interpreted:
	@find src -name '*.so' -delete
	@rm -f .venv/compiled

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

clean: interpreted
	rm -rf .venv build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
