# make        prints this
#
# make demo   trains a GAT under AMP on Cora with halfgnn's kernels, and with DGL's own in the closest mode that they support
# make test   builds, checks style and types, runs every test. The CUDA half, its simulator and its machine code are compiled and
#             checked if they have changed since that was done last (tests/checked.py), or on a machine with a GPU. So are the
#             instructions of the CPU kernels
# make test-all  the same, whatever has changed, and notes in tests/checked.json what was checked
# make quick OP=gatv2_attention  builds and tests an operator (or several: OP="gspmm edge_softmax") in about a minute after an edit, for
#             this processor; see tests/quick.py
# make budgets  compares registers and instructions of every CUDA kernel with the committed ones, if nvcc has their version
# make paths  prints the instructions that warps issue per row of each fast kernel, from its machine code; UPDATE=1 rewrites the table
# make test-architectures  makes a separate build for all of ARCHITECTURES (8.0 9.0+PTX) and reads its machine code, budgets included
# make test-other-architectures  the same for 8.6, 8.9 and 12.0, of which no kernel may spill
# make test-matrix VERSIONS="2.4.1 2.15.0"  runs the tests of the CPU half on these versions of torch and prints a table. Each has
#             its own environment in build/matrix. MATRIX_ENVS="/some/where/t{}" names existing ones, with the version in place of {}
# make wheels VERSIONS="2.10.0 2.14.1"  builds the wheel of the CPU half for torch 2.10 and newer, installs it beside each of these
#             versions in an environment of build/wheels, tests it there and prints a table. WHEEL names one that was built before.
#             CUDA=1: the wheel halfgnn-cu13, for torch 2.11 and newer, with kernels for GPUs, in 47 minutes on two cores.
#             MACHINE=aarch64: builds the CPU half by a cross compiler, and tests nothing
# make mutants FILES="halfgnn/ops halfgnn/graph.py"  changes one expression at a time and prints the changes that no test notices.
#             SAMPLE=60 SEED=1 draws that many changes, BUDGET is CPU seconds of tests per change, JOBS the changes at a time. Not in CI
# make fuzz   CASES=10000 SEED=1: random calls of the CPU half, in a separate build with AddressSanitizer and UBSan
# make docs   builds docs/ and the API's reference as a site, in build/docs/site
# make bench  measures the CPU's figures, for hours on an otherwise idle machine; rows go to BENCH/cpu.csv (out/cpu).
#             QUICK=1 measures one graph at one width, in minutes. ROWS=marked measures what the marks and the README show
#
# These commands first set up everything in VENV (.venv). PYTHON names the interpreter for that environment.
#
# On a machine with a GPU and a python3 that has torch and pytest, without a network:
#
# make gpu-test      builds for this GPU if needed, runs every test and compute-sanitizer on it, and prints a summary
# make gpu-sanitize  runs only compute-sanitizer
# make gpu-rehearsal runs a sample of both on the CPU of .venv, with the packages hidden that such a machine may lack
# make gpu-minibatch measures a step of mini-batch training by phase
# make gpu-bench     measures the operators beside the pure gather and the competitors, and prints tables. QUICK=1 runs a part
#
# PYTHON names that interpreter, OUT the folder for logs and rows (out/gpu). BUILD=0 uses halfgnn/_C.so as it is, BUILD=1 always
# builds it. BUDGET is the time limit of a command, in seconds.

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

OUT ?= out/gpu
BENCH ?= out/cpu
ROWS ?= marked ids threads edges pyg rest
BUILD ?= auto
MINIBATCH = --data synthetic --scale 0.005 --data-dir $(OUT) --max-steps 20 --profile --rows $(OUT)/minibatch.csv
GPU_RUN = $(PYTHON) tests/gpu/run.py --out $(OUT) --build $(BUILD) $(if $(BUDGET),--budget $(BUDGET))

.PHONY: help demo test test-all quick simulator simulated-kernels budgets paths test-architectures test-other-architectures test-matrix wheels check mutants fuzz docs bench bench-marked bench-ids bench-threads bench-rest clean gpu-test gpu-rehearsal gpu-sanitize gpu-bench gpu-minibatch

help:  # the comment that this file begins with
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: $(VENV)/demo halfgnn/_C.so
	$(PY) examples/gat_amp.py --dataset cora --dtype bf16 --heads 1 1 1 --backend both --epochs 50

# 1 if the CUDA half has to be compiled and checked.
CUDA_HALF := $(if $(ALL),1,$(shell $(PYTHON) tests/checked.py cuda))
# A library that was built without it is then not enough.
ifeq ($(CUDA_HALF)$(shell grep -so HALFGNN_CUDA=0 halfgnn/_C.json),1HALFGNN_CUDA=0)
.PHONY: halfgnn/_C.so
endif

test: check halfgnn/_C.so $(if $(filter 1,$(CUDA_HALF)),simulator)
	$(if $(ALL),HALFGNN_TEST_ALL=1) $(PY) -m pytest -q -n $(JOBS) --dist worksteal tests laboratory
ifeq ($(CUDA_HALF),1)
	$(PY) laboratory/simt/run.py --jobs $(JOBS) --fail-under 98
else
	@echo "The CUDA half has not changed since it was compiled and checked: make test-all does it again."
endif

test-all:
	$(MAKE) --no-print-directory test ALL=1
	$(PY) tests/checked.py --record

quick: $(VENV)/test
	@$(PY) tests/quick.py $(OP)

# What needs only g++ and CUDA's headers is compiled while PyTorch is installed, the rest beside the operators. Where it cannot be
# built, pytest runs all the same.
simulator: simulated-kernels $(VENV)/build
	-@$(PY) laboratory/simt/build.py --jobs 1 > /dev/null

simulated-kernels: $(VENV)/ninja
	@$(PY) laboratory/simt/build.py --kernels --jobs 1

budgets: $(VENV)/test halfgnn/_C.so
	$(PY) -m laboratory.machine_code --check

paths: $(VENV)/test halfgnn/_C.so
	$(PY) -m laboratory.machine_code.paths $(if $(UPDATE),--update)

test-architectures: $(VENV)/test
	@mkdir -p build/architectures
	TORCH_CUDA_ARCH_LIST="$(ARCHITECTURES)" $(PY) setup.py -q build --build-base build/architectures --build-lib build/architectures \
	    > build/architectures/build.log 2>&1 || { tail -n 60 build/architectures/build.log; exit 1; }
	HALFGNN_LIBRARY=build/architectures/halfgnn/_C.so HALFGNN_TEST_ARCHS="sm_80 sm_90" \
	    $(PY) -m pytest -q laboratory/machine_code/test_machine_code.py
	$(PY) -m laboratory.machine_code --check build/architectures/halfgnn/_C.so

# Spills alone: rules.OTHER_ARCHS.
OTHER_ARCHITECTURES ?= 8.6 8.9 12.0
test-other-architectures: $(VENV)/test
	@mkdir -p build/other
	TORCH_CUDA_ARCH_LIST="$(OTHER_ARCHITECTURES)" $(PY) setup.py -q build --build-base build/other --build-lib build/other \
	    > build/other/build.log 2>&1 || { tail -n 60 build/other/build.log; exit 1; }
	HALFGNN_LIBRARY=build/other/halfgnn/_C.so HALFGNN_TEST_ARCHS="sm_86 sm_89 sm_120" \
	    $(PY) -m pytest -q laboratory/machine_code/test_machine_code.py -k test_kernels

# A version may name its interpreter: 2.15.0@python3.13.
test-matrix: VERSIONS ?= 2.4.1 2.15.0
test-matrix:
	$(PYTHON) tests/matrix.py $(VERSIONS) --jobs $(JOBS) $(if $(MATRIX_ENVS),--environments "$(MATRIX_ENVS)")

wheels: VERSIONS ?= $(if $(MACHINE),,$(if $(CUDA),,2.10.0) 2.11.0 2.13.0 2.15.0)
wheels: $(VENV)/build
	$(PY) tests/wheels.py $(VERSIONS) --jobs $(JOBS) $(if $(CUDA),--cuda) $(if $(MACHINE),--machine $(MACHINE)) \
	    $(if $(WHEEL),--wheel $(WHEEL))

# Style, formatting and types.
check: $(VENV)/test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(CXX_SOURCES)
	$(PY) -m mypy

mutants: $(VENV)/test halfgnn/_C.so
	$(PY) -m laboratory.mutants $(FILES) --jobs $(JOBS) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
	    $(if $(BUDGET),--budget $(BUDGET)) $(if $(AGAIN),--again)

fuzz: $(VENV)/test build/fuzz/halfgnn/_C.so
	$(PY) -m laboratory.fuzz --sanitized build/fuzz/halfgnn/_C.so --cases $(or $(CASES),10000) --seed $(or $(SEED),1) --jobs $(JOBS)

build/fuzz/halfgnn/_C.so: $(SOURCES) $(VENV)/build
	@mkdir -p build/fuzz
	@echo "compiling halfgnn's CPU half with sanitizers (a few minutes; log: build/fuzz/build.log)"
	@HALFGNN_SANITIZE=1 $(PY) setup.py build_ext --build-temp build/fuzz --build-lib build/fuzz > build/fuzz/build.log 2>&1 \
	    || { tail -n 60 build/fuzz/build.log; exit 1; }
	touch $@

# The rows of the marks; the same with the other type of ids; with other numbers of threads; and what takes hours.
BENCHMARK = $(PY) -m benchmarks
FORWARD = --graphs powerlaw-20k arxiv --dims 128 --orders insertion --directions forward
OTHER_THREADS = $(shell for n in 1 4 8; do [ $$n -le $$(nproc) ] && echo $$n; done)
ifdef QUICK
bench: $(VENV)/test halfgnn/_C.so
	$(BENCHMARK) marked --graphs powerlaw-20k --dims 128 --orders insertion --budget 0.1 --out $(BENCH)
else
bench: $(VENV)/test halfgnn/_C.so
	for rows in $(ROWS); do $(MAKE) --no-print-directory bench-$$rows || exit 1; done
endif

bench-marked:
	$(BENCHMARK) marked --budget 0.2 --out $(BENCH)
bench-ids:
	for family in spmm sddmm softmax; do $(BENCHMARK) $$family $(FORWARD) --idtype int64 --budget 0.2 --out $(BENCH) || exit 1; done
bench-threads:
	for family in spmm sddmm softmax; do \
	  $(BENCHMARK) $$family $(FORWARD) --heads 1 --threads $(OTHER_THREADS) --budget 0.2 --out $(BENCH) || exit 1; \
	done
bench-edges:
	$(BENCHMARK) edge_features --budget 0.3 --out $(BENCH)/edges
bench-pyg:
	$(BENCHMARK) layer --layers GATConv GraphConv SAGEConv --graphs cora-size arxiv --dtype bf16 fp32 --baselines dgl pyg torch.compile \
	    --budget 0.3 --out $(BENCH)/pyg
	$(BENCHMARK) train --graphs arxiv-size --models SAGE GAT --heads 1 --hidden 64 --dtype bf16 fp32 --baselines dgl pyg --budget 3 \
	    --out $(BENCH)/pyg
bench-rest:
	$(BENCHMARK) edges --out $(BENCH)
	$(BENCHMARK) attention --baselines dgl --out $(BENCH)
	$(BENCHMARK) overhead --out $(BENCH)
	$(BENCHMARK) train --graphs arxiv-size --heads 1 --hidden 64 --budget 3 --out $(BENCH)
	$(BENCHMARK) train --graphs reddit-tenth --models GAT --heads 1 --dtype bf16 fp32 --budget 8 --out $(BENCH)

gpu-test:
	$(GPU_RUN)

gpu-rehearsal: halfgnn/_C.so $(VENV)/test
	$(PY) tests/gpu/run.py --rehearse --out out/rehearsal --workers $(JOBS) --budget 3600
	HALFGNN_HIDDEN=dgl,matplotlib,scipy,torch_geometric PYTHONPATH=tests/gpu/hidden $(PY) -m benchmarks gpu --device cpu --out out/rehearsal

gpu-sanitize:
	$(GPU_RUN) --groups sanitize

gpu-bench:
	$(GPU_RUN) --groups
	$(PYTHON) -m benchmarks gpu --out $(OUT) $(if $(QUICK),--quick) $(if $(BUDGET),--budget $(BUDGET))

# A step of MAG240M's baseline by phase, with and without prefetching, with features in a file, page-locked and on the GPU.
gpu-minibatch:
	@if $(PYTHON) -c "import tqdm" > /dev/null 2>&1; then \
	  for options in "" "--prefetch 0" "--features pinned" "--features device" "--dtype bf16" "--dtype fp32"; do \
	    $(PYTHON) examples/mag240m/train.py $(MINIBATCH) --dtype fp16 $$options || exit 1; \
	  done; \
	else echo "mini-batches are not measured: the program needs tqdm"; fi

halfgnn/_C.so: $(SOURCES) $(VENV)/build
	@mkdir -p build
	@echo "compiling halfgnn (a few minutes; log: build/build.log)"
	@$(if $(filter 0,$(CUDA_HALF)),HALFGNN_CUDA=$${HALFGNN_CUDA:-0}) TORCH_CUDA_ARCH_LIST="$(TORCH_CUDA_ARCH_LIST)" $(PY) \
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

docs: build/docs/env
	NO_MKDOCS_2_WARNING=1 build/docs/env/bin/mkdocs build --quiet --site-dir build/docs/site

build/docs/env: requirements/docs.txt
	$(PYTHON) -m venv $@
	$@/bin/pip install -q --disable-pip-version-check -r requirements/docs.txt
	touch $@

clean:
	rm -rf build halfgnn/_C.so halfgnn/_C.json benchmarks/yardsticks/_yardsticks.so benchmarks/yardsticks/_yardsticks.json
