# Everything runs in .venv, made from pyproject.toml (ranges) and constraints.txt (exact pins).

PYTHON ?= python3
PYTEST_JOBS ?= auto
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# PIP_CONSTRAINT reaches the isolated build environment as well, -c would not.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip --quiet
PYTEST := $(BIN)/python -m pytest -q -n $(PYTEST_JOBS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-slow test-gpu screenshots docs lint format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' \
	  | while IFS='|' read -r name text; do printf '  make %-18s %s\n' "$$name" "$$text"; done

quickstart: $(VENV)/.run-stamp ## install, profile this machine, search, re-measure and export
	$(BIN)/tadnn search studies/quickstart.yaml

test: lint ## install the test tools, check style, types and rooms, run the suite
	$(PYTEST) -m "not slow and not gpu" $(PYTEST_ARGS)

test-slow: $(VENV)/.test-stamp ## run the exhaustive tests as well
	$(PYTEST) -m "not gpu" $(PYTEST_ARGS)

screenshots: $(VENV)/.test-stamp ## take the pictures of the browser anew (docs/images)
	TADNN_SCREENSHOTS=$(CURDIR)/docs/images $(BIN)/python -m pytest -q tests/test_browser_chromium.py -k screenshots

docs: $(VENV)/.test-stamp ## write the command reference, run the guides, take their pictures; wants a quiet machine
	$(BIN)/python docs/commands.py
	TADNN_PICTURES=$(CURDIR)/docs/images $(BIN)/python -m pytest -q tests/test_guides.py

test-gpu: $(VENV)/.test-stamp ## run the tests that need a CUDA device
	$(BIN)/python -m pytest -q -m gpu $(PYTEST_ARGS)

lint: $(VENV)/.test-stamp ## check style, types and the order of the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/.test-stamp ## format the code in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ifneq ($(wildcard benchmarks/scoring.py),)
.PHONY: bench-scoring
bench-scoring: $(VENV)/.run-stamp ## architectures scored per second
	$(BIN)/python benchmarks/scoring.py
endif

ifneq ($(wildcard benchmarks/scoring_spaces.py),)
.PHONY: bench-scoring-spaces
bench-scoring-spaces: $(VENV)/.run-stamp ## microseconds per layer of every space, beside resnet's
	$(BIN)/python benchmarks/scoring_spaces.py
endif

ifneq ($(wildcard benchmarks/search_loop.py),)
.PHONY: bench-search-loop
bench-search-loop: $(VENV)/.run-stamp ## trials per second against bare Optuna
	$(BIN)/python benchmarks/search_loop.py
endif

ifneq ($(wildcard benchmarks/latency.py),)
.PHONY: bench-latency
bench-latency: $(VENV)/.test-stamp ## errors of predicted kernels against baselines, on public tables
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/whole_networks.py
	$(BIN)/python benchmarks/adapting.py
	$(BIN)/python benchmarks/tile_habits.py
endif

ifneq ($(wildcard benchmarks/zoo.py),)
.PHONY: bench-zoo
bench-zoo: $(VENV)/.test-stamp ## timm's networks on an RTX 3090, calibrated by half of them; reads them first, half an hour
	$(BIN)/python benchmarks/zoo.py
endif

ifneq ($(wildcard benchmarks/ship_models.py),)
.PHONY: ship-models
ship-models: $(VENV)/.test-stamp ## fit the built-in latency models of GPUs to the public tables; half an hour
	$(BIN)/python benchmarks/ship_models.py
endif

ifneq ($(wildcard benchmarks/finalists.py),)
.PHONY: bench-finalists
bench-finalists: $(VENV)/.run-stamp ## predicted against measured latency on onnxruntime; half an hour, wants a quiet machine
	$(BIN)/python benchmarks/finalists.py
endif

ifneq ($(wildcard benchmarks/fashion_mnist.py),)
.PHONY: bench-fashion
bench-fashion: $(VENV)/.run-stamp ## the study fashion-mnist beside random search and TPE with the same time; two hours
	$(BIN)/python benchmarks/fashion_mnist.py
endif

ifneq ($(wildcard benchmarks/tail.py),)
.PHONY: bench-tail
bench-tail: $(VENV)/.test-stamp ## networks rewritten onto their stairs, beside every simpler way; wants a quiet machine
	$(BIN)/python benchmarks/stairs.py
	$(BIN)/python benchmarks/tail.py --runtime torch-eager --runtime onnxruntime --threads 1 --threads 2
	$(BIN)/python benchmarks/tail_accuracy.py
	$(BIN)/python benchmarks/tail_search.py
endif

ifneq ($(wildcard benchmarks/search_table.py),)
SEARCH_TABLE ?= ../shared/data/accelnasbench_imagenet_mnasnet.csv.gz
SEARCH_FEATURES ?= block*
SEARCH_OBJECTIVES ?= --minimize '100 - val_top1' --minimize '1000/throughput_a100_ips'
.PHONY: bench-search
bench-search: $(VENV)/.run-stamp ## samplers on a table of evaluated networks: table and curves
	$(BIN)/python benchmarks/search_table.py $(SEARCH_TABLE) --features '$(SEARCH_FEATURES)' \
	  $(SEARCH_OBJECTIVES) --write build/bench-search.md --plot build/bench-search.png
endif

clean: ## remove .venv, caches and builds (results stay)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-stamp: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing tadnn into $(VENV)"
	$(PIP) install -e .
	@touch $@

$(VENV)/.test-stamp: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing tadnn and the test tools into $(VENV)"
	$(PIP) install -e ".[test]"
# Networks to read that were not written here. Without their dependencies, for which pyproject.toml
# has no words: they would bring another build of torch, and clients of a hub that no test visits.
	$(PIP) install --no-deps timm torchvision
	@touch $@ $(VENV)/.run-stamp
