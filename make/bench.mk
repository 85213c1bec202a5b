# The CPU's figures. Included by the Makefile.

##
## make bench  measures the CPU's figures, for hours on an otherwise idle machine; rows go to BENCH/cpu.csv (out/cpu).
##             QUICK=1 measures one graph at one width, in minutes. ROWS=marked measures what the targets and the README show

BENCH ?= out/cpu
ROWS ?= marked ids threads edges pyg rest

.PHONY: bench bench-marked bench-ids bench-threads bench-edges bench-pyg bench-rest

# The rows of the targets; the same with the other type of ids; with other numbers of threads; and what takes hours.
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
	$(BENCHMARK) compat --out $(BENCH)
	$(BENCHMARK) train --graphs arxiv-size --heads 1 --hidden 64 --budget 3 --out $(BENCH)
	$(BENCHMARK) train --graphs reddit-tenth --models GAT --heads 1 --dtype bf16 fp32 --budget 8 --out $(BENCH)
