# Every target works as the first command in a fresh clone, given Python 3.11 or newer, make and git.

PYTHON ?= python3
# `make test PYTHON=python3.13` has an environment of its own.
VENV   := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PEERS  := $(VENV)/.peers
SITE   := $(VENV)/.docs
AGENTS := $(VENV)/.agents
AGENT_VERSIONS := tests/peers/agents/versions.txt
# A file is one process's, with its servers; in the order of tests/conftest.py.
SPREAD := --dist=loadfile --no-loadscope-reorder
# One more than there are cores: tests often wait for other processes.
PROCESSES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# A busy machine can upset a test that waits for something: what failed has to pass when it is run by itself.
TRIED   = $(1) --numprocesses=$(PROCESSES) $(SPREAD) || { test $$? -eq 1 && $(1) --last-failed --last-failed-no-failures=none; }

# pip would say that no version of anything fits.
RIGHT_PYTHON := if command -v $(PYTHON) >/dev/null 2>&1 && ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	echo "Portico needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1): make ... PYTHON=python3.13" >&2; exit 1; fi

# The tests start hundreds of processes; each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install serve test check format docs specifications conform real-servers bench clean

help:
	@echo "make serve    serve the five services on http://127.0.0.1:8080/mcp"
	@echo "make test     run all tests"
	@echo "make check    format, lint, types, layers, names"
	@echo "make conform  run the official conformance suite against it"
	@echo "make real-servers  dozens of servers from npm and PyPI behind one gateway"
	@echo "make bench    measure Portico and its peers, in one run"
	@echo "make docs     build the site of the documentation into .site/"
	@echo "make format   put the code into shape"
	@echo "make specifications  write docs/specifications/ anew, from what the services offer"
	@echo "PYTHON=python3.13 chooses another Python; STORM=1 has the tests kill more often"

install: $(READY)

# uv where it is, because it is quick; pip otherwise. The versions are pinned in constraints.txt either way.
$(READY): pyproject.toml constraints.txt
	@$(RIGHT_PYTHON)
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
		uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'; \
	else \
		$(PYTHON) -m venv $(VENV) && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'; \
	fi
	@touch $@

# The other projects' clients, that the tests talk to us with, live apart: they bring a great deal with them.
$(PEERS): $(READY)
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)/peers && \
		uv pip install --quiet --python $(VENV)/peers/bin/python --constraint constraints.txt --editable '.[dev,peers]'; \
	else \
		$(PYTHON) -m venv $(VENV)/peers && \
		$(VENV)/peers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,peers]'; \
	fi
	@touch $@

# The agents of others have nothing of ours beside them, and bring even more: a hundred packages, 300 MB.
OTHERS := langchain-mcp-adapters 'pydantic-ai-slim[mcp]' openai-agents google-adk
$(AGENTS): $(AGENT_VERSIONS)
	@$(RIGHT_PYTHON)
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)/agents && \
		uv pip install --quiet --python $(VENV)/agents/bin/python --constraint $(AGENT_VERSIONS) $(OTHERS); \
	else \
		$(PYTHON) -m venv $(VENV)/agents && \
		$(VENV)/agents/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(AGENT_VERSIONS) $(OTHERS); \
	fi
	@touch $@

# The site is made from the text of the sources: what makes it need not be beside them.
$(SITE): pyproject.toml constraints.txt
	@$(RIGHT_PYTHON)
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)/docs && \
		uv pip install --quiet --python $(VENV)/docs/bin/python --constraint constraints.txt '.[docs]'; \
	else \
		$(PYTHON) -m venv $(VENV)/docs && \
		$(VENV)/docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt '.[docs]'; \
	fi
	@touch $@

serve: $(READY)
	@$(BIN)/portico serve --transport http

test: $(READY) $(PEERS) $(AGENTS)
	$(call TRIED,$(BIN)/python -m pytest --ignore=tests/peers)
	$(call TRIED,$(VENV)/peers/bin/python -m pytest tests/peers)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_names.py tests/test_public_door.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/python -m mkdocs build --quiet --strict

specifications: $(READY)
	$(BIN)/python docs/specifications/write.py

conform: $(READY)
	$(BIN)/python tests/conformance/run.py

# Installs dozens of other people's servers, so it is not a test.
real-servers: $(READY)
	$(BIN)/python tests/peers/real_servers.py

bench: $(READY)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv .venv-* .site .bench .conformance .mypy_cache .pytest_cache .ruff_cache .hypothesis
