# `make demo` and `make test` each work as the only command in a fresh clone; they need Python 3.11+, Java 17+ and make.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo
DOCS_READY := $(VENV)/.ready-docs

# Spark starts "python3" for its workers unless told otherwise, and that one need not have our packages.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHON

.PHONY: help
help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

.PHONY: demo
demo: java $(DEMO_READY)  ## write real flights to an embedded Kafka exactly once, with failures on the way
	@$(BIN)/kafka-eos demo

# Which test is in which tier stands in tests/tiers.py.
TESTS = $(BIN)/python tools/run-tests

.PHONY: check check-unit check-model
check: setup  ## style, types, and the tests that need no broker (2 minutes)
	@$(MAKE) --jobs=2 --keep-going --output-sync=target --no-print-directory lint check-unit check-model
check-unit: setup
	@$(BIN)/pytest -q --tier check tests/unit
check-model: setup
	@$(BIN)/pytest -q --tier check tests/conformance tests/model

.PHONY: test
test: lint  ## style, types, and the tests with the strongest evidence (10 minutes)
	@$(TESTS) --tier test

.PHONY: test-all
test-all: lint  ## style, types, and all tests but the exhaustive tables (900 more tests than make test)
	@$(TESTS) --tier all

.PHONY: model
model: setup  ## search the commit protocol's simulation as far as memory allows (hours)
	@$(BIN)/pytest -q --tier exhaustive --timeout 7200 tests/model/test_exhaustive.py tests/model/test_mutations.py

.PHONY: faults
faults: setup  ## every case of the tables of which `make test-all` takes samples (1 hour)
	@$(TESTS) --tier exhaustive --beyond all

.PHONY: slice
slice: setup  ## a tenth of the tests that `make test` leaves out: SLICE=0 to 9
	@$(TESTS) --tier exhaustive --effort all --beyond test --slice $(SLICE)/10

.PHONY: matrix
matrix: java  ## a smoke test on Spark 4.0 to 4.3, Python 3.11 to 3.13, four Kafkas, and the model (downloads 450 MB for each Spark)
	@tools/run-matrix

.PHONY: floors
floors: java  ## batch, stream, unit tests and commands on the lowest version of every dependency (downloads 900 MB)
	@tools/run-floors

.PHONY: campaign
campaign: setup  ## many faults at once against everything that writes (15 minutes); CAMPAIGN="--minutes 300 --journal FILE" for more
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -m tests.campaign.campaign $(CAMPAIGN)

.PHONY: lint
lint: setup  ## check style and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

.PHONY: bench
bench: setup  ## measure against Spark's built-in Kafka sink
	@$(BIN)/python -m benchmarks.bench_against_spark $(BENCH)

.PHONY: docs
docs: $(DOCS_READY)  ## build the documents as a site with search, in build/docs
	@$(BIN)/python -m sphinx -n -W --keep-going --quiet -b html docs build/docs
	@echo "The site is ready: build/docs/index.html"

.PHONY: release-check
release-check:  ## build and try what a release would upload, without an upload
	@tools/release-check

.PHONY: wheel
wheel: java $(DEMO_READY)  ## build the wheel that travels with spark-submit into dist/
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

.PHONY: broker
broker: java $(DEMO_READY)  ## run an embedded Kafka until Ctrl-C
	@$(BIN)/kafka-eos broker

.PHONY: setup
setup: java $(READY)  ## make .venv with the locked dependencies

# Not in the other locks: a machine without Kerberos's headers must be able to run make demo and make test.
.PHONY: kerberos
kerberos: setup  ## add gssapi to .venv, for the tests of Kerberos (needs a C compiler and libkrb5-dev)
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/kerberos-build.lock
	@$(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation -r requirements/kerberos.lock

.PHONY: java
java:
	@tools/require-java

# Installs the lock $(1), which downloads $(2). Hashes are checked and nothing is built in an environment of pip's own making, so that what
# builds is locked as well. demo.lock and docs.lock are parts of dev.lock: each can be installed on top of the others.
define packages
	@python=$$(tools/find-python) && \
	    { $(BIN)/python -c '' 2>/dev/null || "$$python" -m venv --clear $(VENV); }
	@echo "Installing the locked dependencies into $(VENV); the first time downloads $(2) ..."
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/build.lock
	@$(BIN)/python -m pip install --require-hashes --no-build-isolation -r $(1)
endef

define install
$(call packages,$(1),PySpark (about 450 MB))
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "The environment is ready: $(VENV). What it can do: make help, $(BIN)/kafka-eos --help"
endef

$(READY): requirements/build.lock requirements/dev.lock pyproject.toml
	$(call install,requirements/dev.lock)

$(DEMO_READY): requirements/build.lock requirements/demo.lock pyproject.toml
	$(call install,requirements/demo.lock)

$(DOCS_READY): requirements/build.lock requirements/docs.lock
	$(call packages,requirements/docs.lock,20 MB)
	@touch $@

# uv resolves for all supported Pythons at once, which pip cannot; it reads the index that UV_DEFAULT_INDEX names.
.PHONY: lock
lock:  ## resolve the dependencies anew
	@python=$$(tools/find-python) && "$$python" -m venv --clear build/lock
	@build/lock/bin/python -m pip install --quiet --require-hashes -r requirements/uv.lock
	@for lock in uv.lock:requirements/uv.in build.lock:requirements/build.in release.lock:requirements/release.in \
	        kerberos-build.lock:requirements/kerberos-build.in kerberos.lock:pyproject.toml \
	        dev.lock:pyproject.toml demo.lock:pyproject.toml docs.lock:; do \
	    case $$lock in \
	        dev.lock:*) options="--extra demo --extra pkcs12 --extra metrics --extra msk-iam --group dev --group docs" ;; \
	        kerberos.lock:*) options="--extra kerberos --constraint requirements/dev.lock" ;; \
	        docs.lock:*) options="--group docs --constraint requirements/dev.lock" ;; \
	        demo.lock:*) options="--extra demo --constraint requirements/dev.lock" ;; \
	        *) options= ;; \
	    esac; \
	    build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes \
	        --no-emit-index-url --no-annotate --custom-compile-command "make lock" $$options \
	        --output-file requirements/$${lock%%:*} $${lock#*:} || exit 1; \
	done

.PHONY: clean
clean:  ## remove the environment and everything built; downloads in the user's cache stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
