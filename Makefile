# `make quickstart` and `make test` each work alone on a fresh clone: they make .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# An installation that failed half-way leaves no stamp, so it is tried again.
STAMP := $(VENV)/.installed

.PHONY: quickstart test test-transformers lint install clean

install: $(STAMP)

$(STAMP): setup.py requirements/constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'modeling_hire needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c requirements/constraints.txt -e ".[demo,sentencepiece,sentence-transformers,elmo,dev]"
	touch $@

quickstart: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/python examples/quickstart.py

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-transformers: $(STAMP)
	$(BIN)/python -m tests.transformers_suite.download
	$(BIN)/python -m pytest -q -n 2 -m transformers_suite tests/transformers_suite

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) outputs build dist *.egg-info
