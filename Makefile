# Everything that is done with this repository. `make help` lists it.
# Each target that needs the environment makes it first (deploy/setup), which takes no time when it is there.

PYTHON ?= python3
BIN := .venv/bin
BUILD := build

.DEFAULT_GOAL := help
.PHONY: help setup demo test chaos vm lint docs bench soak lock clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup: ## install what is missing: system packages (no service started or enabled) and .venv
	@command -v $(PYTHON) >/dev/null || { echo "setup: failed: no $(PYTHON): apt-get install python3 python3-venv" >&2; exit 8; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 8))' || { echo "setup: failed: $(PYTHON) is too old: install Python 3.11 or newer" >&2; exit 8; }
	@$(PYTHON) deploy/setup/setup.py

demo: setup ## one pool fails over in a lab of namespaces, every lost packet counted (root; about a minute)
	@mkdir -p $(BUILD)
	$(BIN)/bgplb lab demo --json $(BUILD)/demo.json --picture $(BUILD)/demo.svg

test: setup lint ## all checks and all tests, the quick ones first
	$(BIN)/pytest tests

chaos: setup ## losses of every kind, packets counted; wants a machine that does nothing else (root)
	$(BIN)/pytest tests/lab tests/wiring tests/trust -m chaos

vm: setup ## what needs the stock kernel (its WireGuard, IPVS, a failover with them) in a virtual machine (root; minutes)
	@$(PYTHON) deploy/setup/setup.py --vm
	$(BIN)/pytest tests/vm -m vm

lint: setup ## ruff with its security rules, mypy --strict, import contracts, known vulnerabilities of packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python deploy/setup/audit.py

docs: setup ## write what is generated in docs/ anew: commands, manifests, configuration, the pool's table and drawings
	@for script in docs/generate_*.py; do echo "docs: $$script"; $(BIN)/python "$$script" || exit 1; done

bench: setup ## 30 failovers measured against what BIRD and BFD alone need (root)
	@mkdir -p $(BUILD)
	$(BIN)/bgplb lab bench failover --runs 30 --json $(BUILD)/bench.json

soak: setup ## 200 moves in a row leave nothing behind: no rule, key, lease, file or memory more (root; some minutes)
	@mkdir -p $(BUILD)
	$(BIN)/bgplb lab bench soak --json $(BUILD)/soak.json

lock: setup ## bring requirements.lock to pyproject.toml's ranges (UPGRADE=1: the newest that they allow)
	$(BIN)/pip-compile --quiet $(if $(UPGRADE),--upgrade) --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
	    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
	    --extra dev --extra kubernetes --output-file requirements.lock pyproject.toml

clean: ## remove what the targets made here, except .venv
	rm -rf $(BUILD) *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
