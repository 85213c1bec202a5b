# What runs on a machine with a GPU, and its rehearsal. Included by the Makefile.

##
## On a machine with a GPU and a python3 (PYTHON) that has torch and pytest, without a network:
##
## make gpu-test      builds for this GPU if needed, runs every test and compute-sanitizer on it, and prints a summary
## make gpu-sanitize  runs only compute-sanitizer
## make gpu-rehearsal runs a sample of both on the CPU of .venv, with the packages hidden that such a machine may lack
## make gpu-minibatch measures a step of mini-batch training by phase
## make gpu-bench     measures the operators beside the pure gather and the competitors, and prints tables. QUICK=1 runs a part
##
## OUT is the folder for logs and rows (out/gpu). BUILD=0 uses halfgnn/_C.so as it is, BUILD=1 always builds it. BUDGET is the time
## limit of a command, in seconds.

OUT ?= out/gpu
BUILD ?= auto
MINIBATCH = --data synthetic --scale 0.005 --data-dir $(OUT) --max-steps 20 --profile --rows $(OUT)/minibatch.csv
GPU_RUN = $(PYTHON) tests/gpu/run.py --out $(OUT) --build $(BUILD) $(if $(BUDGET),--budget $(BUDGET))

.PHONY: gpu-test gpu-rehearsal gpu-sanitize gpu-bench gpu-minibatch

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
