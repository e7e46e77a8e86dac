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

.PHONY: help demo check test nightly bench docs clean
help:
	@echo "make demo    install, plan the sample job five ways, write an HTML report"
	@echo "make check   format, lint, types, import contract, size"
	@echo "make test    all tests (data tests need LOWTIDE_DATA, default ../shared/data)"
	@echo "make nightly the planner against brute force, the readers against damaged files, by the thousand"
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

# First, on all cores, what does not mind company; then what counts seconds and mostly waits, two files
# at a time; last, one by one, what runs jobs on a real Slurm. What fails is asked once more by itself,
# and has to pass then.
PYTEST := $(BIN)/python -m pytest
or_by_itself = || { test $$? = 1 && echo "failed: once more, by themselves" && $(PYTEST) --last-failed --last-failed-no-failures none; }
test: $(VENV)/.dev
	$(PYTEST) -m "not alone" -n $(CORES) --dist worksteal $(or_by_itself)
	$(PYTEST) -m "alone and not slurm" -n 2 --dist loadfile $(or_by_itself)
	$(PYTEST) -m slurm $(or_by_itself)

nightly: $(VENV)/.dev
	LOWTIDE_NIGHTLY=1 $(BIN)/python -m pytest tests/policies/test_exact.py tests/policies/test_batches.py \
	  tests/policies/test_replanning.py tests/simulator/test_queue.py tests/formats/test_fuzz.py tests/test_kept_files.py \
	  tests/formats/test_recording_parts.py tests/test_compiled.py \
	  tests/learning/test_drawn_programs.py tests/market \
	  tests/cli/test_verbs.py::test_after_warm_nothing_is_left_to_compile \
	  tests/cli/test_verbs.py::test_no_verb_needs_a_home

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
	$(BIN)/python benchmarks/act.py 1

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "documentation: site/index.html"

clean:
	rm -rf $(VENV) site dist build lowtide-demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
