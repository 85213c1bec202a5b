# make demo   trains a GAT under AMP on Cora with halfgnn's kernels, and with DGL's own in the closest mode they have
# make test   builds, checks style and types, runs every test
# make test-architectures  builds for all of $(ARCHITECTURES), apart, and reads their machine code
# make test-matrix VERSIONS="2.4.1 2.15.0"  runs the CPU half's tests on these versions of torch, each in an environment of its own
#             in build/matrix (or in those that MATRIX_ENVS names, "/some/where/t{}" with the version for {}); a table at the end
# make mutants FILES="halfgnn/ops halfgnn/graph.py"  changes one expression at a time and prints what no test notices; not in CI.
#             SAMPLE=60 SEED=1 draws that many changes, BUDGET is CPU seconds of tests on each, JOBS how many at a time
# make fuzz   CASES=10000 SEED=1: random calls of the CPU half, built apart under AddressSanitizer and UBSan
# make bench  measures the CPU's figures on an otherwise idle machine, for hours; rows go to $(BENCH)/cpu.csv
#
# These set up everything in $(VENV) first. PYTHON names the interpreter that the environment is made from.
#
# On a machine with a GPU, with a python3 that has torch and pytest, and without a network:
#
# make gpu-test      builds for this GPU if need be, runs every test there, and compute-sanitizer; a summary at the end
# make gpu-sanitize  compute-sanitizer alone
# make gpu-minibatch measures a step of mini-batch training by phase (needs DGL for its samplers)
# make gpu-bench     measures the operators beside the pure gather and what others have; tables at the end. QUICK=1: a part
#
# PYTHON names that interpreter, OUT the folder of logs and rows (out/gpu). BUILD=0 takes halfgnn/_C.so as it is, BUILD=1
# builds it in any case. BUDGET is what a command may take, in seconds.

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
JOBS ?= 2
# What an environment still lacks is installed, and style is checked, while the operators are compiled.
MAKEFLAGS += -j2
# Without bytecode of 160 MB of Python, of which little is ever imported.
PIP := $(PY) -m pip install -q --disable-pip-version-check --no-compile

CXX_SOURCES := $(shell find csrc benchmarks/yardsticks -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
SOURCES := $(CXX_SOURCES) setup.py build_sources.py cuda_toolkit.py

# One architecture and PTX for newer ones: a quarter of the compilation. `pip install` builds for all.
TORCH_CUDA_ARCH_LIST ?= 9.0+PTX
# Those that the committed facts and tables of machine code are of, for `make test-architectures`.
ARCHITECTURES = 8.0 9.0+PTX

OUT ?= out/gpu
BENCH ?= out/cpu
BUILD ?= auto
MINIBATCH = --data synthetic --scale 0.005 --data-dir $(OUT) --max-steps 20 --profile --rows $(OUT)/minibatch.csv
GPU_RUN = $(PYTHON) tests/gpu/run.py --out $(OUT) --build $(BUILD) $(if $(BUDGET),--budget $(BUDGET))

.PHONY: demo test test-architectures test-matrix check mutants fuzz bench clean gpu-test gpu-sanitize gpu-bench gpu-minibatch

demo: $(VENV)/demo halfgnn/_C.so
	$(PY) examples/gat_amp.py --dataset cora --dtype bf16 --heads 1 1 1 --backend both --epochs 50

test: check halfgnn/_C.so
	$(PY) -m pytest -q -n $(JOBS) --dist worksteal tests
	$(PY) tests/simt/run.py --jobs $(JOBS) --fail-under 98

test-architectures: $(VENV)/test
	@mkdir -p build/architectures
	TORCH_CUDA_ARCH_LIST="$(ARCHITECTURES)" $(PY) setup.py -q build --build-base build/architectures --build-lib build/architectures \
	    > build/architectures/build.log 2>&1 || { tail -n 60 build/architectures/build.log; exit 1; }
	HALFGNN_LIBRARY=build/architectures/halfgnn/_C.so HALFGNN_TEST_ARCHS="sm_80 sm_90" \
	    $(PY) -m pytest -q tests/test_machine_code.py

# A version may name its interpreter: 2.15.0@python3.13.
VERSIONS ?= 2.4.1 2.15.0
test-matrix:
	$(PYTHON) tests/matrix.py $(VERSIONS) --jobs $(JOBS) $(if $(MATRIX_ENVS),--environments "$(MATRIX_ENVS)")

# Style, formatting and types.
check: $(VENV)/test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(CXX_SOURCES)
	$(PY) -m mypy

mutants: $(VENV)/test halfgnn/_C.so
	$(PY) -m tests.mutants $(FILES) --jobs $(JOBS) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
	    $(if $(BUDGET),--budget $(BUDGET)) $(if $(AGAIN),--again)

fuzz: $(VENV)/test build/fuzz/halfgnn/_C.so
	$(PY) -m tests.fuzz --sanitized build/fuzz/halfgnn/_C.so --cases $(or $(CASES),10000) --seed $(or $(SEED),1) --jobs $(JOBS)

build/fuzz/halfgnn/_C.so: $(SOURCES) $(VENV)/build
	@mkdir -p build/fuzz
	@echo "compiling halfgnn's CPU half with sanitizers (a few minutes; log: build/fuzz/build.log)"
	@HALFGNN_SANITIZE=1 $(PY) setup.py build_ext --build-temp build/fuzz --build-lib build/fuzz > build/fuzz/build.log 2>&1 \
	    || { tail -n 60 build/fuzz/build.log; exit 1; }
	touch $@

bench: $(VENV)/test halfgnn/_C.so
	$(PY) -m benchmarks operators --out $(BENCH)
	$(PY) -m benchmarks layer --out $(BENCH)
	$(PY) -m benchmarks overhead --out $(BENCH)
	$(PY) -m benchmarks train --graphs arxiv-size --heads 1 --hidden 64 --budget 3 --out $(BENCH)
	$(PY) -m benchmarks train --graphs reddit-tenth --models GAT --heads 1 --dtype bf16 fp32 --budget 8 --out $(BENCH)

gpu-test:
	$(GPU_RUN)

gpu-sanitize:
	$(GPU_RUN) --groups sanitize

gpu-bench:
	$(GPU_RUN) --groups
	$(PYTHON) -m benchmarks gpu --out $(OUT) $(if $(QUICK),--quick) $(if $(BUDGET),--budget $(BUDGET))

# A step of MAG240M's baseline by phase: prefetched or not, features in a file, page-locked and on the GPU. Sampling needs DGL.
gpu-minibatch:
	@if $(PYTHON) -c "import dgl, tqdm" > /dev/null 2>&1; then \
	  for options in "" "--prefetch 0" "--features pinned" "--features device" "--dtype bf16" "--dtype fp32"; do \
	    $(PYTHON) examples/rgat_minibatch.py $(MINIBATCH) --dtype fp16 $$options || exit 1; \
	  done; \
	else echo "mini-batches are not measured: their sampling needs DGL and tqdm"; fi

halfgnn/_C.so: $(SOURCES) $(VENV)/build
	@mkdir -p build
	@echo "compiling halfgnn (a few minutes; log: build/build.log)"
	@TORCH_CUDA_ARCH_LIST="$(TORCH_CUDA_ARCH_LIST)" $(PY) setup.py build_ext --inplace > build/build.log 2>&1 || { tail -n 60 build/build.log; exit 1; }
	touch $@

# An environment, a stamp for each set of requirements installed in it.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/build: requirements/build.txt $(VENV)/bin/python
	$(PIP) -r requirements/build.txt
	touch $@

$(VENV)/demo: requirements/demo.txt $(VENV)/build
	$(PIP) -r requirements/demo.txt
	$(PIP) --no-deps -r requirements/data.txt
	touch $@

$(VENV)/test: requirements/test.txt $(VENV)/demo
	$(PIP) -r requirements/test.txt
	touch $@

clean:
	rm -rf build halfgnn/_C.so halfgnn/_C.json benchmarks/yardsticks/_yardsticks.so benchmarks/yardsticks/_yardsticks.json
