# Every target works as the first command in a fresh clone, given Python 3.11 or newer, make and git.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PEERS  := $(VENV)/.peers

.PHONY: help install serve test check format bench clean

help:
	@echo "make serve    serve the example server on stdio (HTTP is not there yet)"
	@echo "make test     run all tests"
	@echo "make check    format, lint, types, layers, names"
	@echo "make bench    measure Portico and its peers, in one run"
	@echo "make format   put the code into shape"

install: $(READY)

# uv where it is, because it is quick; pip otherwise. The versions are pinned in constraints.txt either way.
$(READY): pyproject.toml constraints.txt
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

serve: $(READY)
	@echo "Serving examples/everything.py on stdio: type JSON-RPC, one message a line; Ctrl-D ends it." >&2
	@$(BIN)/portico serve examples/everything.py

test: $(READY) $(PEERS)
	$(BIN)/python -m pytest --ignore=tests/peers
	$(VENV)/peers/bin/python -m pytest tests/peers

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_names.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis
