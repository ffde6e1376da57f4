# What has to be there first: make, a Python from 3.10 to 3.13, for which there is a TensorFlow, and a package index that pip can reach.
# Everything else goes into .venv on the first call of any target. `make PYTHON=python3.12` chooses the Python.

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$python && break; done)
# tensorflow-cpu has no wheels for macOS; there the plain package is the CPU build.
TENSORFLOW ?= $(if $(filter Darwin,$(shell uname -s)),tensorflow,tensorflow-cpu)
PYTEST_ARGS ?=
# Up to three failures are tried once more, each alone, and said to be flaky if they pass then.
TEST_ARGS := --durations=10 -p tests.again
# The other slow tests are a part of `make nightly`.
TESTS ?= not slow or core
# Most tests wait for processes, so two more of them run than there are cores; a cluster of TensorFlow takes a gigabyte or two, so at most 4.
# Tests that share what takes long stay in one process: tests/groups.py.
PARALLEL ?= -n $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); echo $$((cores < 3 ? cores + 2 : 4)))
BENCH_ARGS ?= --quick
# `make figures` is benchmarks/readme.py.
BENCHMARKS ?= $(filter-out readme,$(basename $(notdir $(shell grep -l -e --quick benchmarks/*.py))))
CHAOS_ARGS ?= --trials 60 --seed 1
MATRIX_ARGS ?=
JUDGE_ARGS ?=
DRAWS_ARGS ?= --draws 3000 --seed 1001 --minutes 60

BIN := .venv/bin
RUNTIME_READY := .venv/.ready-runtime
READY := .venv/.ready
BENCH_READY := .venv/.ready-benchmarks
DIST_READY := .venv/.ready-dist
DOCS_READY := .venv/.ready-docs
INSTALL := $(BIN)/python -m pip --require-virtualenv install --no-input --disable-pip-version-check

# The release of tf-keras that fits the TensorFlow that was installed: 2.21.0 for 2.21.1.
TF_KERAS = $$($(BIN)/python -c 'from importlib.metadata import version; print(".".join(version("$(TENSORFLOW)").split(".")[:2]) + ".0")')

# A tree that was moved or copied together with its .venv is installed again: an editable install knows its own place.
ifneq ($(shell cat $(RUNTIME_READY) 2>/dev/null),$(CURDIR))
.PHONY: $(RUNTIME_READY)
endif

.PHONY: help demo test slurm-24 slurm-26 python-3.14 hosts kubernetes lint types format docs links dist man pictures figures bench judge chaos matrix corners next nightly generated golden clean
.NOTPARALLEL:

help:
	@echo 'make demo     a cluster of 4 workers trains on handwritten digits'
	@echo 'make test     the tests, the fast ones first (PYTEST_ARGS="-k logs" chooses; TESTS= adds the slow ones of make nightly PART=slow)'
	@echo 'make slurm-24 the tests of Slurm with that of Debian 13, 24.11: in a tree that debootstrap makes once in ~/.cache/orch-tests; root only'
	@echo 'make slurm-26 the same with the Slurm of Debian testing'
	@echo 'make python-3.14 the controller on Python 3.14: in a tree of Debian unstable, made as for slurm-24; tasks keep the Python of .venv'
	@echo 'make kubernetes  the Kubernetes of the tests, built once from the source package of Debian 12: some ten minutes, 500 MB in ~/.cache/orch-tests'
	@echo 'make lint     ruff: rules and format'
	@echo 'make types    mypy --strict'
	@echo 'make format   ruff: mend what can be mended'
	@echo 'make docs     the pages of docs/ as a site: build/docs/index.html; a link or an anchor that leads nowhere is an error'
	@echo 'make generated  the files that the code writes: the schema of orch.yaml, docs/reference.md, docs/api.md'
	@echo 'make golden   the answers in the files of tests/golden.py, as the code gives them now: read the difference'
	@echo 'make links    the links of the pages to other sites: needs the Internet'
	@echo 'make man      the man page, from the tree of commands: build/orch.1'
	@echo 'make dist     the release: wheel, source distribution and orch.pyz in dist/, checked, and tried in an empty environment'
	@echo 'make pictures the runs that README.md shows; make figures: its table of seconds, in some three minutes'
	@echo 'make bench    the figures of benchmarks/, in some ten minutes (BENCH_ARGS= for all rounds)'
	@echo 'make judge    all of Keras on several workers beside one process; writes the table of docs/keras-cases.md'
	@echo '              (JUDGE_ARGS="--areas losses --worlds one,two" chooses)'
	@echo 'make chaos    the long soaks: many runs, hosts and forks at once; then kill, stop and end tasks, templates, agents and controllers'
	@echo '              of real clusters (CHAOS_ARGS="--trials 200 --seed 1"); then drawn trainings (DRAWS_ARGS="--draws 3000 --minutes 60")'
	@echo 'make matrix   the checks of tests/matrix with other releases of Python, TensorFlow and Keras; writes the table of docs/limits.md'
	@echo '              (MATRIX_ARGS=--help); make corners: the lowest, the newest and the next alone, and the controller on Python 3.14'
	@echo 'make next     the same checks with the newest TensorFlow and Keras that the index has, also before they are final (docs/new-keras.md)'
	@echo 'make nightly  all that is too long for each change, with a budget of minutes for each part (PART=judge chooses; MINUTES=12: so many minutes of it, as in CI)'
	@echo 'make clean    remove caches and build output; .venv stays'

# Without the tools of developers, which the other targets install.
demo: $(RUNTIME_READY)
	@echo 'orch: now: orch up examples/mwms_custom_loop.py --workers 4'
	@$(BIN)/orch up examples/mwms_custom_loop.py --workers 4

test: $(READY) hosts
	@$(BIN)/python -m pytest $(PARALLEL) $(TEST_ARGS) -m "$(TESTS)" $(PYTEST_ARGS)

slurm-24: SUITE := trixie
slurm-26: SUITE := testing
slurm-24 slurm-26: $(READY) hosts
	$(call install_for_tests,the Slurm of another Debian,command -v debootstrap >/dev/null,debootstrap)
	@$(BIN)/python -m tests.debian_slurm $(SUITE) $(PYTEST_ARGS)

python-3.14: $(READY)
	$(call install_for_tests,the controller on Python 3.14,command -v debootstrap >/dev/null,debootstrap)
	@$(BIN)/python -m tests.python_3_14 $(PYTEST_ARGS)

# The tests of SSH and Slurm make hosts of network namespaces, which takes root, sshd and ip, and Slurm's daemons; a browser draws the page
# of a run. What is missing is installed if that can be done without starting a daemon (no systemd runs here); otherwise it is said, and
# those tests are skipped. The arguments: what is tested, the check whether all is there, the packages.
define install_for_tests
	@if $(2); then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! test -d /run/systemd/system; then \
		echo 'orch: installing $(3), for the tests of $(1)'; \
		{ apt-get -qq update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(3); } \
			>/dev/null 2>&1 </dev/null || echo 'orch: NOT TESTED: $(1): apt-get could not install $(3)' >&2; \
	else \
		echo 'orch: NOT TESTED: $(1): install $(3)' >&2; \
	fi
endef
HAS_SSH := command -v ip >/dev/null && command -v ssh >/dev/null && test -x /usr/sbin/sshd
HAS_SLURM := command -v sbatch >/dev/null && test -x /usr/sbin/slurmctld && test -x /usr/sbin/slurmd && test -x /usr/sbin/munged
HAS_MPI := test -x /usr/bin/mpiexec.mpich && test -x /usr/bin/mpiexec.openmpi
HAS_BROWSER := command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || command -v google-chrome >/dev/null

hosts: $(READY)
	@if [ "$$(id -u)" != 0 ]; then echo 'orch: NOT TESTED: hosts with ssh, Slurm: only root can make network namespaces' >&2; fi
	$(call install_for_tests,hosts with ssh,$(HAS_SSH),openssh-server openssh-client iproute2)
	$(call install_for_tests,Slurm,$(HAS_SLURM),slurmctld slurmd slurm-client munge)
	$(call install_for_tests,the page of a run in a browser,$(HAS_BROWSER),chromium-headless-shell)
	$(call install_for_tests,orch metrics with promtool,command -v promtool >/dev/null,prometheus)
	@$(BIN)/python -m tests.kubernetes_bed.build --check

# As the tests that use it, the build wants Debian 12, whose apt downloads what it is made of. Nothing is installed into the system.
kubernetes: $(READY)
	@$(BIN)/python -m tests.kubernetes_bed.build

lint: $(READY)
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .

types: $(READY)
	@$(BIN)/python -m mypy

format: $(READY)
	@$(BIN)/python -m ruff check --fix .
	@$(BIN)/python -m ruff format .

# -n: also references that Sphinx would let pass. The pages are few, so all of them are read each time.
# Of the declared settings: what the schema and the reference say.
generated: $(READY)
	@mkdir -p build
	@$(BIN)/python -m orchestrator.model.settings.describe > build/orch.schema.json && mv build/orch.schema.json orchestrator/model/settings/orch.schema.json
	@$(BIN)/python docs/make_reference.py > build/reference.md && mv build/reference.md docs/reference.md
	@$(BIN)/python docs/make_api.py > build/api.md && mv build/api.md docs/api.md

golden: $(READY)
	@$(BIN)/python -m pytest -q --golden -p no:cacheprovider $$(grep -rl '@golden.cases' tests)

SPHINX := $(BIN)/python -m sphinx -W -n --keep-going -q -E -c docs -d build/doctrees

docs: $(DOCS_READY)
	@$(SPHINX) -b html . build/docs
	@echo 'the documentation: build/docs/index.html'

links: $(DOCS_READY)
	@$(SPHINX) -b linkcheck . build/links

dist: $(DIST_READY)
	@rm -rf dist
	@$(BIN)/python -m build --quiet --no-isolation --outdir dist .
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/python docs/make_archive.py dist/orch.pyz
	@$(BIN)/python -m tests.trial dist

man: $(READY)
	@mkdir -p build && $(BIN)/python docs/make_man.py > build/orch.1 && echo 'build/orch.1: read it with man -l build/orch.1'

pictures: $(READY)
	@$(BIN)/python -m tests.pictures

figures: $(READY)
	@$(BIN)/python -m benchmarks.readme

bench: $(BENCH_READY)
	@for name in $(BENCHMARKS); do echo "== $$name"; \
		$(BIN)/python -m benchmarks.$$name $(BENCH_ARGS) || failed="$$failed $$name"; done; \
		test -z "$$failed" || { echo "FAILED:$$failed" >&2; exit 1; }

judge: $(READY)
	@$(BIN)/python -m tests.judge $(JUDGE_ARGS)

chaos: $(READY)
	@$(BIN)/python -m pytest --soak -n 2 --durations=0
	@$(BIN)/python -m tests.real.chaos $(CHAOS_ARGS)
	@$(BIN)/python -m tests.judge $(DRAWS_ARGS)

matrix: $(READY)
	@$(BIN)/python -m tests.matrix $(MATRIX_ARGS)

corners: $(READY)
	@$(BIN)/python -m tests.matrix --corners
	$(call install_for_tests,the controller on Python 3.14,command -v debootstrap >/dev/null,debootstrap)
	@$(BIN)/python -m tests.python_3_14 --brief

next: $(READY)
	@$(BIN)/python -m tests.matrix 3.13-next

nightly: $(BENCH_READY) hosts
	$(call install_for_tests,--join with mpiexec,$(HAS_MPI),mpich openmpi-bin libpmix-dev)
	@$(BIN)/python -m tests.nightly $(PART) $(addprefix --minutes ,$(if $(filter 1,$(CI)),12,$(MINUTES)))

clean:
	@rm -rf build dist .cache/matrix .cache/uv .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so that an install which failed half-way is done again. A .venv that was left unfinished may
# hold an interpreter that is not a virtual environment's: it would install into the Python it was made from. On a terminal, pip shows its
# progress with TensorFlow.
$(RUNTIME_READY): pyproject.toml Makefile
	@rm -f $(RUNTIME_READY)
	@test -n '$(PYTHON)' || { echo 'orch: no Python from 3.10 to 3.13 on PATH, for which there is a TensorFlow; name one: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.prefix == sys.base_prefix)' 2>/dev/null || { \
		$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
			echo 'orch: $(PYTHON) cannot make a virtual environment: its venv or ensurepip module is missing.' >&2; \
			echo '      On Debian and Ubuntu: apt-get install python3-venv. Or choose another: make PYTHON=...' >&2; exit 1; }; \
		echo 'orch: making .venv with '"$$($(PYTHON) --version)"; $(PYTHON) -m venv --clear .venv; }
	@echo 'orch: installing orch, $(TENSORFLOW) and scikit-learn into .venv: once; some 400 MB to download, and 1.7 GB on the disk'
	@if test -t 1; then $(INSTALL) --editable '.[$(TENSORFLOW),examples]'; else $(INSTALL) --quiet --editable '.[$(TENSORFLOW),examples]'; fi
	@pwd -P > $(RUNTIME_READY)

$(READY): $(RUNTIME_READY)
	@echo 'orch: installing the tools of developers into .venv: pytest, mypy, ruff and others'
	@$(INSTALL) --quiet --editable '.[dev]'
# Keras 2, for the tests of --keras legacy. With its dependencies it would install the build for CUDA over tensorflow-cpu.
	@$(INSTALL) --quiet --no-deps "tf-keras~=$(TF_KERAS)" || \
		echo 'orch: NOT TESTED: --keras legacy: there is no tf-keras for this TensorFlow' >&2
	@touch $(READY)

$(BENCH_READY): $(READY)
	@$(INSTALL) --quiet --editable '.[benchmarks]'
	@touch $(BENCH_READY)

$(DIST_READY): $(READY)
	@$(INSTALL) --quiet --editable '.[release]'
	@touch $(DIST_READY)

$(DOCS_READY): $(READY)
	@$(INSTALL) --quiet --editable '.[docs]'
	@touch $(DOCS_READY)
