# Everything here works on a fresh machine with Python 3.11 or later and a package index: `make demo`, `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
STAMP := $(VENV)/.installed
# Where the demo keeps its state. Given, it is kept and a second run resumes it; empty, a temporary folder is used.
STATE ?=
# What `make test` runs; for one stage alone: make test STAGES=unit
STAGES ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv test demo lint format sample clean

help:
	@echo "make demo [STATE=dir]     an all-in-one deployment boots a workload and shows what became of it"
	@echo "make test [STAGES='...']  every check: lint typing unit functional wheel bench-smoke"
	@echo "make lint                 ruff, its formatter and the import contracts"
	@echo "make format               rewrite the sources as the formatter wants them"
	@echo "make sample               regenerate etc/superconductor/superconductor.conf.sample"
	@echo "make venv                 only the virtual environment, in $(VENV)"
	@echo "make clean                remove what the above have made"

venv: $(STAMP)

$(STAMP): setup.cfg pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: install it, or say make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed, $(PYTHON) is older: say make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) cannot make virtual environments: install its venv package (on Debian: python3-venv)"; exit 1; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --editable '.[test,lint,mysql,postgres]'
	@touch $@

test: $(STAMP)
	@$(VENV)/bin/python ci/stages.py $(STAGES)

demo: $(STAMP)
	@$(VENV)/bin/python -m cli demo $(if $(STATE),--state '$(STATE)')

lint: $(STAMP)
	@$(VENV)/bin/python ci/stages.py lint

format: $(STAMP)
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .

sample: $(STAMP)
	$(VENV)/bin/oslo-config-generator --config-file etc/superconductor/config-generator.conf

clean:
	rm -rf $(VENV) .tox build dist superconductor.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
