# The OneDL stack in a virtual environment of its own. Python 3.11:
#   make demo PYTHON=python3.11
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint

demo: $(VENV)/installed
	$(BIN)/python tools/demo.py

test: $(VENV)/installed
	$(BIN)/python -m pytest

lint: $(VENV)/installed
	$(BIN)/flake8 mmib mmib_cli tools benchmarks tests configs setup.py
	$(BIN)/isort --check-only --diff mmib mmib_cli tools benchmarks tests setup.py
	$(BIN)/yapf --recursive --parallel --diff mmib mmib_cli tools benchmarks tests configs setup.py

# This exact pin: a range would fetch another build of torch.
$(VENV)/installed: setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install torch==2.13.0
	$(BIN)/python -m pip install -e '.[onedl,test]'
	touch $@
