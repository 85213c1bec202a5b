# `make` prints what the comments with two signs say of targets, here and in make/: benchmarks, and machines with a GPU.

## Targets set up everything in VENV (.venv) first. PYTHON names the interpreter for that environment, JOBS is how much runs at once.
##

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
JOBS ?= 2
# While packages are installed, the simulator's kernels are compiled, the operators, and style is checked.
MAKEFLAGS += -j3
# The hundreds of processes of the tests import PyTorch: compiling its modules again takes each of them 3 to 10 seconds.
unexport PYTHONDONTWRITEBYTECODE
# Without bytecode: most of the 160 MB of Python are never imported, and the rest is compiled on its first import.
PIP := $(PY) -m pip install -q --disable-pip-version-check --no-compile

CXX_SOURCES := $(shell find csrc benchmarks/yardsticks -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
SOURCES := $(CXX_SOURCES) setup.py build_sources.py cuda_toolkit.py

# One architecture, and PTX for newer ones. This takes a quarter of the compilation time of `pip install`, which builds for all.
TORCH_CUDA_ARCH_LIST ?= 9.0+PTX
# The architectures of the committed facts and tables of machine code, for `make test-architectures`.
ARCHITECTURES = 8.0 9.0+PTX

.PHONY: help demo test test-all quick simulator simulated-kernels budgets paths test-architectures test-other-architectures \
    test-matrix wheels check mutants fuzz docs clean

help:
	@sed -n 's/^## \{0,1\}//p' $(MAKEFILE_LIST)

include make/bench.mk make/gpu.mk

## make demo   trains a GAT under AMP on Cora with halfgnn's kernels, and with DGL's own in the closest mode that they support
demo: $(VENV)/demo halfgnn/_C.so
	$(PY) examples/gat_amp.py --dataset cora --dtype bf16 --heads 1 1 1 --backend both --epochs 50

# 1 if the CUDA back end has to be compiled and checked.
WITH_CUDA := $(if $(ALL),1,$(shell $(PYTHON) tests/checked.py cuda))
# A library that was built without it is then not enough.
ifeq ($(WITH_CUDA)$(shell grep -so HALFGNN_CUDA=0 halfgnn/_C.json),1HALFGNN_CUDA=0)
.PHONY: halfgnn/_C.so
endif

## make test   builds, checks style and types, runs every test, those of more than 8 cases on a sample. The CUDA back end, its
##             simulator and its machine code are compiled and checked if they have changed since that was done last
##             (tests/checked.py), or on a machine with a GPU; WITH_CUDA=0 leaves them out. So are the instructions of
##             the CPU kernels
test: check halfgnn/_C.so $(if $(filter 1,$(WITH_CUDA)),simulator)
	$(if $(ALL),HALFGNN_TEST_ALL=1) $(PY) -m pytest -q -n $(JOBS) --dist worksteal tests laboratory
ifeq ($(WITH_CUDA),1)
	$(PY) laboratory/simt/run.py --jobs $(JOBS) --fail-under 98
else
	@echo "The CUDA back end has not changed since it was compiled and checked: make test-all does it again."
endif

## make test-all  the same with all cases, whatever has changed, and notes in tests/checked.json what was checked
test-all:
	$(MAKE) --no-print-directory test ALL=1
	$(PY) tests/checked.py --record

## make quick OP=gatv2_attention  builds and tests an operator (or several: OP="gspmm edge_softmax") in about a minute after an
##             edit, for this processor; see tests/quick.py
quick: $(VENV)/test
	@$(PY) tests/quick.py $(OP)

# What needs only g++ and CUDA's headers is compiled while PyTorch is installed, the rest beside the operators. Where it cannot be
# built, pytest runs all the same.
simulator: simulated-kernels $(VENV)/build
	-@$(PY) laboratory/simt/build.py --jobs 1 > /dev/null

simulated-kernels: $(VENV)/ninja
	@$(PY) laboratory/simt/build.py --kernels --jobs 1

## make budgets  compares registers and instructions of every CUDA kernel with the committed ones, if nvcc has their version
budgets: $(VENV)/test halfgnn/_C.so
	$(PY) -m laboratory.machine_code --check

## make paths  prints the instructions that warps issue per row of each fast kernel, from its machine code; UPDATE=1 rewrites
##             the table
paths: $(VENV)/test halfgnn/_C.so
	$(PY) -m laboratory.machine_code.paths $(if $(UPDATE),--update)

## make test-architectures  makes a separate build for all of ARCHITECTURES (8.0 9.0+PTX) and reads its machine code, budgets
##             included
test-architectures: $(VENV)/test
	@mkdir -p build/architectures
	TORCH_CUDA_ARCH_LIST="$(ARCHITECTURES)" $(PY) setup.py -q build --build-base build/architectures --build-lib build/architectures \
	    > build/architectures/build.log 2>&1 || { tail -n 60 build/architectures/build.log; exit 1; }
	HALFGNN_LIBRARY=build/architectures/halfgnn/_C.so HALFGNN_TEST_ARCHS="sm_80 sm_90" \
	    $(PY) -m pytest -q laboratory/machine_code/test_machine_code.py
	$(PY) -m laboratory.machine_code --check build/architectures/halfgnn/_C.so

## make test-other-architectures  the same for 8.6, 8.9 and 12.0, of which no kernel may spill (rules.OTHER_ARCHS)
OTHER_ARCHITECTURES ?= 8.6 8.9 12.0
test-other-architectures: $(VENV)/test
	@mkdir -p build/other
	TORCH_CUDA_ARCH_LIST="$(OTHER_ARCHITECTURES)" $(PY) setup.py -q build --build-base build/other --build-lib build/other \
	    > build/other/build.log 2>&1 || { tail -n 60 build/other/build.log; exit 1; }
	HALFGNN_LIBRARY=build/other/halfgnn/_C.so HALFGNN_TEST_ARCHS="sm_86 sm_89 sm_120" \
	    $(PY) -m pytest -q laboratory/machine_code/test_machine_code.py -k test_kernels

## make test-matrix VERSIONS="2.4.1 2.15.0"  runs the tests of the CPU back end on these versions of torch and prints a table. Each has
##             its own environment in build/matrix, and may name its interpreter: 2.15.0@python3.13.
##             MATRIX_ENVS="/some/where/t{}" names existing ones, with the version in place of {}
test-matrix: VERSIONS ?= 2.4.1 2.15.0
test-matrix:
	$(PYTHON) tests/matrix.py $(VERSIONS) --jobs $(JOBS) $(if $(MATRIX_ENVS),--environments "$(MATRIX_ENVS)")

## make wheels VERSIONS="2.10.0 2.14.1"  builds the wheel of the CPU back end for torch 2.10 and newer, installs it beside each of
##             these versions in an environment of build/wheels, tests it there and prints a table. WHEEL names one that was built
##             before. CUDA=1: the wheel halfgnn-cu13, for torch 2.11 and newer, with kernels for GPUs, in 47 minutes on two cores.
##             MACHINE=aarch64: builds the CPU back end by a cross compiler, and tests nothing
wheels: VERSIONS ?= $(if $(MACHINE),,$(if $(CUDA),,2.10.0) 2.11.0 2.13.0 2.15.0)
wheels: $(VENV)/build
	$(PY) tests/wheels.py $(VERSIONS) --jobs $(JOBS) $(if $(CUDA),--cuda) $(if $(MACHINE),--machine $(MACHINE)) \
	    $(if $(WHEEL),--wheel $(WHEEL))

## make check  checks style, formatting and types
check: $(VENV)/test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(CXX_SOURCES)
	$(PY) -m mypy

## make mutants FILES="halfgnn/ops halfgnn/graph.py"  changes one expression at a time and prints the changes that no test
##             notices. SAMPLE=60 SEED=1 draws that many changes, BUDGET is CPU seconds of tests per change, JOBS the changes at a time.
##             Not in CI
mutants: $(VENV)/test halfgnn/_C.so
	$(PY) -m laboratory.mutants $(FILES) --jobs $(JOBS) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
	    $(if $(BUDGET),--budget $(BUDGET)) $(if $(AGAIN),--again)

## make fuzz CASES=10000 SEED=1  random calls of the CPU back end, in a separate build with AddressSanitizer and UBSan
fuzz: $(VENV)/test build/fuzz/halfgnn/_C.so
	$(PY) -m laboratory.fuzz --sanitized build/fuzz/halfgnn/_C.so --cases $(or $(CASES),10000) --seed $(or $(SEED),1) --jobs $(JOBS)

build/fuzz/halfgnn/_C.so: $(SOURCES) $(VENV)/build
	@mkdir -p build/fuzz
	@echo "compiling halfgnn's CPU back end with sanitizers (a few minutes; log: build/fuzz/build.log)"
	@HALFGNN_SANITIZE=1 $(PY) setup.py build_ext --build-temp build/fuzz --build-lib build/fuzz > build/fuzz/build.log 2>&1 \
	    || { tail -n 60 build/fuzz/build.log; exit 1; }
	touch $@

halfgnn/_C.so: $(SOURCES) $(VENV)/build
	@mkdir -p build
	@echo "compiling halfgnn (a few minutes; log: build/build.log)"
	@$(if $(filter 0,$(WITH_CUDA)),HALFGNN_CUDA=$${HALFGNN_CUDA:-0}) TORCH_CUDA_ARCH_LIST="$(TORCH_CUDA_ARCH_LIST)" $(PY) \
	    setup.py build_ext --inplace > build/build.log 2>&1 || { tail -n 60 build/build.log; exit 1; }
	touch $@

# An environment, and a stamp for each set of requirements that is installed in it.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/ninja: $(VENV)/bin/python
	$(PIP) ninja
	touch $@

$(VENV)/build: requirements/build.txt $(VENV)/ninja
	$(PIP) -r requirements/build.txt
	touch $@

$(VENV)/demo: requirements/demo.txt $(VENV)/build
	$(PIP) -r requirements/demo.txt
	$(PIP) --no-deps -r requirements/data.txt
	touch $@

$(VENV)/test: requirements/test.txt $(VENV)/demo
	$(PIP) -r requirements/test.txt
	touch $@

## make docs   builds docs/ and the API's reference as a site, in build/docs/site
docs: build/docs/env
	NO_MKDOCS_2_WARNING=1 build/docs/env/bin/mkdocs build --strict --site-dir build/docs/site

build/docs/env: requirements/docs.txt
	$(PYTHON) -m venv $@
	$@/bin/pip install -q --disable-pip-version-check -r requirements/docs.txt
	touch $@

clean:
	rm -rf build halfgnn/_C.so halfgnn/_C.json halfgnn/_autograd.so halfgnn/_autograd.json benchmarks/yardsticks/_yardsticks.so benchmarks/yardsticks/_yardsticks.json
