# The workflow. Every target installs what it needs into .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORES  ?= $(shell nproc)
# Which packages are fetched and installed is said as it happens; all else only if it fails.
TELL   := sed --unbuffered -nE -e 's/^Collecting ([^ ]+).*/  looking for \1/p' -e 's/^ *Downloading ([^ ]+) (\(.*\)).*/  fetching \1 \2/p' \
          -e 's/^Installing collected packages.*/  unpacking .../p' -e 's/^Building/  building/p' -e '/^ *(error|ERROR)/,$$p'
install = $(BIN)/python -m pip --disable-pip-version-check install --progress-bar off -c constraints.txt -e $(1) 2>&1 | $(TELL)

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
export LOWTIDE_DATA ?= ../shared/data

.PHONY: help demo check test test-here test-beside test-slurm test-alone nightly bench docs clean
help:
	@echo "make demo    install, plan the sample job five ways, write an HTML report"
	@echo "make check   format, lint, types, import contract, size"
	@echo "make test    all tests (data tests need LOWTIDE_DATA, default ../shared/data)"
	@echo "make nightly the same, with cases drawn by the thousand: planners against brute force, readers against damaged files"
	@echo "make bench   benchmarks, as ratios against a stated baseline"
	@echo "make docs    build the documentation into site/"
	@echo "make clean   remove everything that was generated"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "lowtide needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing lowtide into $(VENV) ..."
	@$(call install,'.[figures]')
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing lowtide and its development tools into $(VENV) ..."
	@$(call install,'.[dev]')
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	@$(BIN)/lowtide demo

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/size.py

# What does not mind company runs on all cores, and then what counts seconds, two files at a time. Beside both,
# one by one, what runs jobs on a real Slurm, and waits most of the time. What fails is asked once more by
# itself, and has to pass then.
PYTEST := $(BIN)/python -m pytest
ask = $(PYTEST) -o cache_dir=.pytest_cache/$@ $(1) || { test $$? = 1 && echo "failed: once more, by themselves" \
  && $(PYTEST) -o cache_dir=.pytest_cache/$@ --last-failed --last-failed-no-failures none; }
# Hundreds of programs are started by tests, and each would compile lowtide's modules anew.
unexport PYTHONDONTWRITEBYTECODE
test: $(VENV)/.dev
	@$(MAKE) --jobs 2 --no-print-directory test-here test-slurm
test-here: $(VENV)/.dev
	@$(MAKE) --no-print-directory test-beside
	@$(MAKE) --no-print-directory test-alone
test-beside: $(VENV)/.dev
	$(call ask,-m "not alone" -n $(CORES) --dist worksteal)
test-slurm: $(VENV)/.dev
	$(call ask,-m slurm)
test-alone: $(VENV)/.dev
	$(call ask,-m "alone and not slurm" -n 2 --dist loadfile)

nightly: $(VENV)/.dev
	LOWTIDE_NIGHTLY=1 $(PYTEST) -m "not alone" -n $(CORES) --dist worksteal
	LOWTIDE_NIGHTLY=1 $(PYTEST) tests/test_compiled.py -m alone
	LOWTIDE_NIGHTLY=1 $(PYTEST) tests/acting/test_failures_on_slurm.py -k killed_at_random

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/exact.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/cluster.py
	$(BIN)/python benchmarks/learn.py
	$(BIN)/python benchmarks/library.py
	$(BIN)/python benchmarks/utilisation.py
	$(BIN)/python benchmarks/forecast.py
	$(BIN)/python benchmarks/watch.py
	$(BIN)/python benchmarks/exposition.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/serve.py
	$(BIN)/python benchmarks/act.py 1

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "documentation: site/index.html"

clean:
	rm -rf $(VENV) site dist build lowtide-demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
