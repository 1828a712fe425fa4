# Every target builds what it needs: a virtual environment in .venv and, for demo, test and testbed, the control
# planes' binaries in the user's cache folder.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROTOS := $(wildcard proto/federator/v1/*.proto)

# Length of the demo; 0 runs until Ctrl-C.
DEMO_SECONDS ?= 0
# Three at once on two cores, since many tests wait; those of units do not. tests/conftest.py deals them out. Empty for one
# process, as a debugger needs it.
DEALT := --dist loadscope --no-loadscope-reorder
WORKERS ?= -n 3 $(DEALT)
# Without bytecode each worker compiles all tests anew, a fifth of the whole work. So it is kept here even where Python is
# told to keep none; make clean removes it.
BYTECODE := PYTHONDONTWRITEBYTECODE=
# Of the fault runs.
SEED ?= 1
ROUNDS ?= 10
# Extra words for pytest, e.g. make test ARGS="-k outbox".
ARGS ?=

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "federator needs Python 3.11 or newer; set PYTHON=")'
	@echo "Setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: venv
venv: $(READY) ## Create the virtual environment with the locked dependencies

.PHONY: testbed
testbed: $(READY) ## Build the control planes' binaries (about 12 minutes the first time, 2 cores)
	@$(BIN)/python -m federator.testing build

.PHONY: demo
demo: testbed ## Three living clusters, one aggregator, a live view of the global watch
	@$(BIN)/python -m federator.testing.demo --seconds $(DEMO_SECONDS)

.PHONY: run
run: $(READY) ## Federate every context of your kubeconfig
	@$(BIN)/federator run

.PHONY: test
test: testbed ## Run all tests, on real control planes
	@$(BYTECODE) $(BIN)/python -m pytest $(WORKERS) $(ARGS)

.PHONY: unit
unit: $(READY) ## Run the unit tests only, in less than half a minute: nothing but the process they run in
	@$(BYTECODE) HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-brief} $(BIN)/python -m pytest $(if $(WORKERS),-n 2 $(DEALT)) tests/unit $(ARGS)

.PHONY: component
component: $(READY) ## Run the component and contract tests only: real gRPC, files and processes, no control planes
	@$(BYTECODE) $(BIN)/python -m pytest $(WORKERS) tests/component tests/contract $(ARGS)

.PHONY: lint
lint: $(READY) ## Check format, lint, types, import layers and generated code
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory proto-check

.PHONY: check
check: lint unit component ## lint, then the unit, component and contract tests

.PHONY: fix
fix: $(READY) ## Apply what lint can mend by itself
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: bench
bench: testbed ## Measure and write build/bench.json
	@$(BIN)/python -m tests.bench

# Clusters of the federation that kind-up creates.
TOPOLOGY ?= 3

.PHONY: image
image: ## Build the container image (needs docker)
	docker build --tag federator:0.2.0 .

.PHONY: kind-up
kind-up: ## Create a federation of kind clusters: TOPOLOGY=2, 3 or 5 (needs docker, kind, kubectl)
	@kind-configs/kind.sh up $(TOPOLOGY)

.PHONY: kind-down
kind-down: ## Delete it
	@kind-configs/kind.sh down $(TOPOLOGY)

# Of the ledger's runs: processes killed, and power cuts.
KILLS ?= 1000
UNSYNCED ?= 300
# Of the aggregator's run: processes killed under load of 20 agents, and each how many of them also lose their ledger.
AGGREGATOR_KILLS ?= 50
EMPTY_EVERY ?= 10

.PHONY: torture
torture: testbed ## Property tests and cases at full size, kills, power cuts, fault runs, long: SEED=1 ROUNDS=10, reports in build/
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest $(WORKERS) -m "hypothesis or scaled" -p no:cacheprovider --timeout=1800 \
		tests/unit tests/component tests/contract tests/conformance tests/robustness
	$(BIN)/python -m tests.robustness.ledger_torture --mode kill --kills $(KILLS) --seed $(SEED) --report build/ledger-torture.json
	$(BIN)/python -m tests.robustness.ledger_torture --mode unsynced --kills $(UNSYNCED) --seed $(SEED) --report build/ledger-unsynced.json
	$(BIN)/python -m tests.robustness.aggregator_torture --kills $(AGGREGATOR_KILLS) --empty-every $(EMPTY_EVERY) --seed $(SEED) --report build/aggregator-torture.json
	$(BIN)/python -m tests.robustness.watch_run --seed $(SEED) --seconds 120 --report build/watch-run.json
	$(BIN)/python -m tests.robustness.differential --seed $(SEED) --seconds 120 --runs 3 --report build/differential.json
	$(BIN)/python -m tests.robustness.fault_run --seed $(SEED) --rounds $(ROUNDS) --report build/torture.json

PROTOC = $(BIN)/python -m grpc_tools.protoc -Iproto --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc

.PHONY: proto
proto: $(READY) ## Generate federator/v1 from proto/
	@$(PROTOC) --python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. $(PROTOS)

.PHONY: proto-check
proto-check: $(READY)
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && \
	$(PROTOC) --python_out=$$out --grpc_python_out=$$out --mypy_out=quiet:$$out --mypy_grpc_out=quiet:$$out $(PROTOS) && \
	for f in $$(cd $$out && find . -type f); do cmp "$$out/$$f" "$$f" || { echo "run: make proto"; exit 1; }; done

.PHONY: clean
clean: ## Remove what the targets made inside the checkout (the cached binaries stay)
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .state
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
