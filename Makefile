# One command each: `make demo` shows Plait at work, `make test` checks it, `make test-all` on every architecture.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-all lint bench docs setup clean

setup: $(VENV)/.ready

# torch first and alone: a pinned request takes the plain CPU build, a range may fetch gigabytes of CUDA.
$(VENV)/.ready: pyproject.toml constraints.txt $(wildcard src/plait/switch/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Plait needs Python >= 3.11; set PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,hf]'
	@touch $@

demo: setup
	$(BIN)/plait train gpt2-tiny --cluster local:4 --stages 4 --micro-batches 8 --steps 30 --verify --out runs/demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest --numprocesses 2 --dist loadfile

test-all: lint
	PLAIT_CASES=new $(BIN)/pytest --numprocesses 2 --dist loadfile -m ''

bench: setup
	@for file in bench/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

docs: setup
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) runs build dist src/*.egg-info
