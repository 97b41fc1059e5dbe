# Everything here works on a fresh machine with Python 3.11 or later and a package index: `make demo`, `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
# It has a checksum in its name rather than a date: a checkout or a copy makes files newer without changing them.
STAMP := $(VENV)/.installed-$(firstword $(shell cat setup.cfg pyproject.toml requirements.lock | cksum))
# Where the demo and the region keep their state. Given, it is kept and a second run resumes it; empty, the demo uses a temporary
# folder and the region .region.
STATE ?=
# What the demo runs on: all-in-one (one process), or region (RabbitMQ, MariaDB, and every role as processes of its own).
CONFIG ?= all-in-one
# What hosts of the all-in-one demo and of the chaos run are: simulated, or libvirt (a few real guests; libvirt and QEMU are installed if necessary).
DRIVER ?= simulated
# More options of the region, such as REGION='--agents 4 --database postgresql'.
REGION ?=
# Options of the chaos run, such as CHAOS='--duration 600 --rate 5 --seed 7 --faults kill,stop,broker'.
CHAOS ?=
# What `make test` runs; for one stage alone: make test STAGES=unit
STAGES ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv lock release site test quick demo region region-down region-status bench-region chaos lint format sample clean

help:
	@echo "make demo [STATE=dir]     an all-in-one deployment boots a workload and shows what became of it"
	@echo "make demo DRIVER=libvirt  a few real guests on two hosts of this machine; needs libvirt and QEMU, not KVM"
	@echo "make demo CONFIG=region   the same on a region: RabbitMQ, MariaDB, 2 cells, 30 commands of their own"
	@echo "make region [STATE=dir]   start such a region, and leave it running (docs/local-region.md)"
	@echo "make region-status, make region-down   show its processes; stop it"
	@echo "make test [STAGES='...']  every check, or the stages that are named; python ci/stages.py --help lists them"
	@echo "make bench-region         what a boot costs such a region: statements, messages, CPU, memory, time (ten minutes)"
	@echo "make chaos [CHAOS='...']  two minutes of load and faults on such a region, and a strict verdict (docs/chaos.md)"
	@echo "make chaos DRIVER=libvirt the same with real guests, whose QEMU processes are counted"
	@echo "make quick                ruff, mypy on what has changed, and the unit tests: what to run before a commit"
	@echo "make lint                 ruff, its formatter and the import contracts"
	@echo "make format               rewrite the sources as the formatter wants them"
	@echo "make sample               regenerate the samples in etc/superconductor, and the tables in docs/compute-api.md"
	@echo "make venv                 only the virtual environment, in $(VENV), with the packages of requirements.lock"
	@echo "make lock                 write requirements.lock anew: the newest packages within the bounds of setup.cfg (needs uv)"
	@echo "make site                 the documentation as a site with search, in build/site/html"
	@echo "make release              the wheel of this commit in dist/, and the tag of its version"
	@echo "make clean                remove what the above have made"

venv: $(STAMP)

$(STAMP):
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: install it, or say make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed, $(PYTHON) is older: say make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) cannot make virtual environments: install its venv package (on Debian: python3-venv)"; exit 1; }
	@# of an activated environment the interpreter that it was made with: the environment itself may be the one that goes
	base=$$($(PYTHON) -c 'import os, sys; print(os.path.realpath(sys.executable))') && rm -rf $(VENV) && $$base -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --require-hashes --only-binary :all: --requirement requirements.lock
	$(VENV)/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

lock:
	@$(PYTHON) ci/lock.py

site: $(STAMP)
	@$(VENV)/bin/python ci/site.py

release: $(STAMP)
	@$(VENV)/bin/python ci/release.py

test: $(STAMP)
	@$(VENV)/bin/python ci/stages.py $(STAGES)

demo: $(STAMP)
ifeq ($(CONFIG),region)
	@$(VENV)/bin/python -m deploy.local demo $(if $(STATE),--state '$(STATE)') $(REGION)
else ifeq ($(CONFIG),all-in-one)
	@if [ '$(DRIVER)' = libvirt ]; then $(VENV)/bin/python ci/hypervisor.py; fi
	@$(VENV)/bin/python -m cli demo --driver '$(DRIVER)' $(if $(STATE),--state '$(STATE)')
else
	@echo "CONFIG is all-in-one or region, not $(CONFIG)"; exit 2
endif

region: $(STAMP)
	@$(VENV)/bin/python -m deploy.local up '$(or $(STATE),.region)' $(REGION)

region-down: $(STAMP)
	@$(VENV)/bin/python -m deploy.local down '$(or $(STATE),.region)'

region-status: $(STAMP)
	@$(VENV)/bin/python -m deploy.local status '$(or $(STATE),.region)'

bench-region: $(STAMP)
	@$(VENV)/bin/python bench/region.py

chaos: $(STAMP)
	@if [ '$(DRIVER)' = libvirt ]; then $(VENV)/bin/python ci/hypervisor.py; fi
	@$(VENV)/bin/python -m chaos --driver '$(DRIVER)' $(CHAOS)

quick: $(STAMP)
	@$(VENV)/bin/ruff check --quiet . && $(VENV)/bin/ruff format --quiet --check . && $(VENV)/bin/python -m mypy
	@$(VENV)/bin/python -m pytest -q -x -n auto tests/unit

lint: $(STAMP)
	@$(VENV)/bin/python ci/stages.py lint

format: $(STAMP)
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .

sample: $(STAMP)
	$(VENV)/bin/oslo-config-generator --config-file etc/superconductor/config-generator.conf
	$(VENV)/bin/oslopolicy-sample-generator --namespace superconductor --output-file etc/superconductor/policy.yaml.sample
	$(VENV)/bin/python -m tests.support.api_table

clean:
	rm -rf $(VENV) .venv-nova .venv-fuzz .tox build dist superconductor_cloud.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
