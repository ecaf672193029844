# Everything runs in .venv, which is made when it is absent; only Python 3.11 (or later), git and make need to be there.
# Tests with the lowest versions that setup.cfg allows run in .venv-lowest.
# Packages are installed again only when one of the files that name them has changed.

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
# Compiled files make the many processes of the tests start faster, wherever they are not wanted otherwise.
unexport PYTHONDONTWRITEBYTECODE
.NOTPARALLEL:
.DEFAULT_GOAL := help

VENV := .venv
LOWEST := .venv-lowest
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Plugins whose commands are tested and documented with those of the package.
COMMANDS_OF := plugins/nni_latency_farm plugins/nni_latency_service
NAMED_IN := setup.cfg pyproject.toml constraints.txt $(COMMANDS_OF:%=%/setup.cfg)
# Files go to the processes in their order, not by their number of tests: long ones come before the many short examples.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# Passed on to pytest or to the demo, as in: make test ARGS="-k table"
ARGS ?=

# What is run with the lowest versions: at least one user of every package that setup.cfg names, in a few minutes. Of the
# operators that is what reads, writes and traces networks, and not what only counts.
LOWEST_TESTS ?= tests/platforms tests/documents tests/operators/test_*onnx*.py tests/operators/test_capture.py \
    tests/operators/test_rebuild.py tests/operators/test_learned_inputs.py tests/operators/test_unusual_networks.py \
    tests/estimators/test_additive.py tests/estimators/test_base.py tests/tables/test_lookup_table.py \
    tests/tables/test_campaign.py tests/tables/test_builder.py tests/tables/test_layer_pairs.py \
    tests/cli/test_cli_help.py tests/cli/test_cli_options.py \
    tests/testing tests/measurement/test_bench.py tests/database/test_store_contract.py

.PHONY: help demo demo-service check test test-slow test-lowest gpu lint docs benchmarks venv converter clean

# What the runtimes of plugins/ stand on, for their tests.
DEPLOYED := onnxruntime openvino ncnn pnnx ai-edge-litert

# Tests that the service keeps to its OpenAPI document; wants newer packages than the lowest that setup.cfg allows.
CONFORMANCE := schemathesis

# What converts networks for LiteRT: an environment of its own; without it the tests that convert are skipped.
CONVERTER := .venv-litert
export NNI_LATENCY_LITERT_PYTHON ?= $(if $(wildcard $(CONVERTER)/.installed),$(abspath $(CONVERTER))/bin/python)

help: ## Say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	    while IFS='|' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.installed ## Build a table of this device, search with it, show what was found; output in demo/
	@$(BIN)/python examples/demo.py $(ARGS)

demo-service: $(VENV)/.installed-demo-service ## Run a farm, a service and its page; ResNet-18 is first measured, then known
	@$(BIN)/python examples/demo_service.py $(ARGS)

test: $(VENV)/.installed-test ## Run the tests, in two processes, without the slow ones
	@$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed-test ## Run the slow tests: real budgets, whole searches
	@$(PYTEST) -m slow $(ARGS)

# Old packages warn about the new ones that they meet, which is no fault of this one.
test-lowest: $(LOWEST)/.installed-test ## Run the tests with the lowest versions that setup.cfg allows
	@$(LOWEST)/bin/python -m pytest -n 2 --dist loadfile -m "not slow and not installs" -W default $(LOWEST_TESTS) $(ARGS)

gpu: $(VENV)/.installed-test ## Run what needs a GPU, half an hour at most; the report goes to report-gpu/
	@$(BIN)/python examples/gpu_report.py $(ARGS)

# Types and layers are checked while the tests run; pytest ends with 5 where there is no test to run.
check: $(VENV)/.installed-test ## Check style, types, layers and the quick tests of what differs from main, before a commit
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@{ $(BIN)/mypy && $(BIN)/lint-imports; } & \
	tests="$$($(BIN)/python .ci/changed_tests.py)"; failed=0; \
	[ -z "$$tests" ] || $(BIN)/python -m pytest -q -m "not slow" $$tests $(ARGS) || [ $$? = 5 ] || failed=1; \
	wait $$! && exit $$failed

lint: $(VENV)/.installed-test ## Check style, format, types and the imports between the rooms
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(VENV)/.installed-docs ## Build the documentation in docs/_build/html; a warning is an error
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# The tests leave the benchmarks out by an option in setup.cfg, which must not hold here.
benchmarks: $(VENV)/.installed-test ## Run the benchmarks
	@$(BIN)/python -m pytest -o addopts="--strict-config --strict-markers -ra" tests/benchmarks $(ARGS)

venv: $(VENV)/.installed ## Make .venv and install the package in it

converter: $(CONVERTER)/.installed ## Make .venv-litert, which converts networks for LiteRT in the slow tests (2 GB)

clean: ## Remove everything that was made, .venv included
	@rm -rf $(VENV) $(LOWEST) $(CONVERTER) .venv-arm64 demo report-gpu build dist docs/_build
	@rm -rf *.egg-info plugins/*/*.egg-info plugins/*/build
	@rm -rf .benchmarks .hypothesis
	@rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# pip is the last thing that goes into a new environment, so it stands for a whole one.
$(BIN)/pip $(LOWEST)/bin/pip $(CONVERTER)/bin/pip:
	@for python in python3.11 python3 python; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Making $(@:/bin/pip=) with $$python"; \
	        exec "$$python" -m venv $(@:/bin/pip=); \
	    fi; \
	done; \
	echo "Python 3.11 or later is needed, and neither python3.11 nor python3 is one." >&2; exit 1

$(VENV)/.installed: $(NAMED_IN) | $(BIN)/pip
	@echo "Installing nni_latency in $(VENV) (a few minutes the first time)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: $(NAMED_IN) | $(BIN)/pip
	@echo "Installing nni_latency and what its tests need in $(VENV) (a few minutes the first time)"
	@$(INSTALL) -e '.[test,examples]' $(DEPLOYED) $(CONFORMANCE)
	@$(INSTALL) --no-deps $(COMMANDS_OF:%=-e ./%)
	@touch $@ $(VENV)/.installed

# The runtimes of its workers are plugins; what they stand on comes with the tests.
$(VENV)/.installed-demo-service: $(VENV)/.installed-test
	@$(INSTALL) --no-deps $(addprefix ./plugins/nni_latency_,onnxruntime openvino)
	@touch $@

$(VENV)/.installed-docs: $(NAMED_IN) | $(BIN)/pip
	@echo "Installing nni_latency and what its documentation needs in $(VENV) (a few minutes the first time)"
	@$(INSTALL) -e '.[docs]' $(COMMANDS_OF:%=-e ./%)
	@touch $@ $(VENV)/.installed

$(LOWEST)/.installed-test: setup.cfg pyproject.toml constraints-lowest.txt | $(LOWEST)/bin/pip
	@echo "Installing nni_latency and the lowest versions that it allows in $(LOWEST) (a few minutes the first time)"
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[test]'
	@touch $@

$(CONVERTER)/.installed: constraints.txt | $(CONVERTER)/bin/pip
	@echo "Installing litert-torch in $(CONVERTER) (a few minutes the first time)"
	@$(CONVERTER)/bin/python -m pip install --quiet --disable-pip-version-check 'litert-torch>=0.10,<0.11' \
	    "$$(grep '^torch==' constraints.txt)"
	@touch $@
