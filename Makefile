# Two commands do everything on a fresh machine: `make demo` and `make test`.
# PYTHON=python3.12 make test   picks an interpreter; without it, the one of .venv, else python3.

VENV := .venv
PY := $(VENV)/bin/python
ifndef PYTHON
PYTHON := $(shell $(PY) -c '' 2>/dev/null && echo $(PY) || echo python3)
endif
ASK := -c 'import sys; print("%d.%d" % sys.version_info[:2])'
VERSION := $(shell $(PYTHON) $(ASK) 2>/dev/null)
# One stamp per set of extras; a set is installed again when pyproject.toml, constraints.txt or the interpreter changes.
MADE := $(VENV)/made-$(VERSION)

EXTRAS_package :=
EXTRAS_test := [test,dev,docs]
EXTRAS_docs := [docs]
EXTRAS_all := [all,oracles,test,dev,docs]

.PHONY: help demo test setup check vulnerabilities results faults docs clean

help:
	@echo "make demo      install the package alone into $(VENV), run the demo, say where the page is"
	@echo "make test      install what the tests need, then the checks and the whole test suite"
	@echo "make setup     install every extra, for people who work on debiaser"
	@echo "make check     ruff, mypy --strict, the wheel built and tried, known vulnerabilities of what is installed"
	@echo "make vulnerabilities   those known of the pins; fails where the database cannot answer"
	@echo "make results   the tables in README and docs, from results/"
	@echo "make faults    the long fault suite"
	@echo "make docs      the documentation site, in site/, with every link checked"
	@echo "make clean     remove $(VENV), caches and build files; runs and data stay"

demo: $(MADE)/package
	$(VENV)/bin/debiaser demo

test: check
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 -rs -m "not long"

setup: $(MADE)/all
	@echo "Ready: . $(VENV)/bin/activate"

check: $(MADE)/test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict src
	$(PY) tests/package.py
	$(PY) tests/known_vulnerabilities.py

vulnerabilities: $(MADE)/test
	$(PY) tests/known_vulnerabilities.py --strict

results: $(MADE)/package
	$(PY) docs/making/tables.py

faults: $(MADE)/test
	OMP_NUM_THREADS=1 $(PY) -m pytest -rs -m long

docs: $(MADE)/docs
	$(PY) -m mkdocs build --strict
	@echo "The pages: $(CURDIR)/site/index.html"

clean:
	rm -rf $(VENV) site build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

PIP := $(PY) -m pip --disable-pip-version-check -qq install -c constraints.txt
$(MADE)/%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "debiaser needs Python 3.11 or later; '$(PYTHON)' is $(if $(VERSION),$(VERSION),not a Python that runs)." \
	       "Name another one: PYTHON=python3.12 make $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the venv module. On Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	@test "`$(PY) $(ASK) 2>/dev/null`" = "$(VERSION)" || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing debiaser$(EXTRAS_$*) into $(VENV); the first time this downloads torch and takes some minutes ..."
	@{ $(PIP) 'setuptools>=77' && $(PIP) --no-build-isolation -e '.$(EXTRAS_$*)'; } || { \
	  echo "The installation did not finish. If the network failed, run 'make $(MAKECMDGOALS)' again: finished downloads" \
	       "are kept. Behind a mirror, set PIP_INDEX_URL; without a network, PIP_NO_INDEX=1 PIP_FIND_LINKS=folder-of-wheels." >&2; exit 1; }
	@mkdir -p $(MADE) && touch $@
