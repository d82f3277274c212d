# Everything a contributor types. `make` alone lists it; CI calls the same targets.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV ?= .venv
BIN := $(VENV)/bin
# The first interpreter that really runs (version managers leave names that do not) and is new enough.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# Extra arguments for the program behind a target: make test ARGS="-k radix", make demo ARGS="--requests 200".
ARGS ?=
INSTALLED := $(VENV)/.installed

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  ARGS=\"...\" hands extra arguments on: make test ARGS=\"-k radix\""

.PHONY: setup
setup: $(INSTALLED) ## make .venv with the pinned, hash-checked dependencies and kvgate itself (once)

# The stamp is touched last, so an interrupted installation is done again.
$(INSTALLED): constraints.txt constraints-dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "make setup needs Python 3.11 or newer (PYTHON=/path/to/python)" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing pinned dependencies into $(VENV)"
	@$(PIP) install --require-hashes -r constraints.txt -r constraints-dev.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: demo
demo: setup ## 4 mock workers, the gateway, three policies compared (TRACE=FILE replays a trace)
	@$(BIN)/kvgate demo $(if $(TRACE),--trace $(TRACE)) $(ARGS)

.PHONY: test
test: setup ## run the tests (KVGATE_INSTALL=1 as root also installs nginx and redis-server)
	@.ci/services nginx redis-server
	@$(BIN)/python -m pytest -m "not vllm" $(ARGS)

.PHONY: check
check: setup ## formatting, lint, types, layers, house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/tidy

.PHONY: format
format: setup ## rewrite the sources as `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: bench
bench: setup ## measure against nginx and against the bars (about four minutes; ARGS="--quick" for a look)
	@.ci/services nginx
	@$(BIN)/python -m tests.bench $(ARGS)

.PHONY: bench-peers
bench-peers: setup ## the same rows for three other routers, each installed into .venv-peers/ (a quarter of an hour)
	@.ci/services nginx
	@$(BIN)/python -m tests.bench.peers $(ARGS)

.PHONY: run
run: setup ## a gateway on :8000 before 4 mock workers, for trying by hand (Ctrl-C ends both)
	@trap 'kill $$(jobs -p) 2>/dev/null || true; wait' EXIT; \
	$(BIN)/kvgate mock --num-workers 4 --port 8100 --events-port 5600 & \
	$(BIN)/kvgate serve $(addprefix --worker-urls http://127.0.0.1:,8100 8101 8102 8103) \
		--kv-events 'tcp://{host}:{port-2500}' --kv-replay 'tcp://{host}:{port-1500}' $(ARGS)

.PHONY: docker
docker: ## build the image kvgate:latest
	docker build -t kvgate:latest .

.PHONY: bench-streams
bench-streams: setup ## 10,000 streams at once, or as many as descriptors allow (a minute and a half)
	@$(BIN)/python -m tests.bench.streams $(ARGS)

.PHONY: soak
soak: setup ## KV events at twice the memory of the index for two minutes (ARGS="--minutes 10 --seed 1")
	@$(BIN)/python -m tests.soak $(ARGS)

.PHONY: fuzz
fuzz: setup ## clients and workers that send anything, for two minutes (ARGS="--minutes 10 --seed 1")
	@$(BIN)/python -m tests.fuzz $(ARGS)

VLLM_ENV ?= .venv-vllm
.PHONY: test-vllm
test-vllm: setup ## tests with a real vLLM on the CPU, in a venv of its own (VLLM_ENV=DIR reuses one)
	@PYTHON=$(PYTHON) tests/vllm/install.sh $(VLLM_ENV)
	@VLLM_ENV=$(abspath $(VLLM_ENV)) $(BIN)/python -m pytest -m vllm -p no:randomly tests/vllm $(ARGS)

# pip-tools has a venv of its own: it depends on the pip that it finds beside it.
PINS := .venv-pins/bin/python -m piptools compile -q --upgrade --no-config --generate-hashes --allow-unsafe \
	--strip-extras --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host
.PHONY: constraints
constraints: ## pin every dependency anew: constraints.txt (to build and run), constraints-dev.txt (to test)
	$(PYTHON) -m venv .venv-pins && .venv-pins/bin/python -m pip install -q pip-tools
	$(PINS) --all-build-deps --extra tokenizers -o constraints.txt pyproject.toml
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' \
		| $(PINS) -c constraints.txt -o constraints-dev.txt -

.PHONY: clean
clean: ## remove the venvs, caches and results
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache .coverage htmlcov bench-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
