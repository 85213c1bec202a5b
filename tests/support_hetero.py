"""A heterograph of four relations, and blocks that DGL samples of it."""

import dgl
import torch

from halfgnn import HeteroGraph

WRITES, WRITTEN, CITES, SHOWN = (
    ("author", "writes", "paper"),
    ("paper", "written-by", "author"),
    ("paper", "cites", "paper"),
    ("venue", "shows", "paper"),
)
NUM_NODES = {"author": 50, "paper": 60, "venue": 5}


def edges(seed=0, num_edges=300):
    random = torch.Generator().manual_seed(seed)

    def draw(ntype):
        return torch.randint(0, NUM_NODES[ntype], (num_edges,), generator=random)

    writes = draw("author"), draw("paper")
    return {
        WRITES: writes,
        WRITTEN: writes[::-1],
        CITES: (draw("paper"), draw("paper")),
        SHOWN: (draw("venue"), draw("paper")),
    }


def dgl_graph(idtype=torch.int64):
    g = dgl.heterograph(edges(), num_nodes_dict=NUM_NODES)
    return g.int() if idtype == torch.int32 else g


def hetero_graph(device="cpu", idtype=torch.int64):
    index = {etype: torch.stack(ends).to(idtype).to(device) for etype, ends in edges().items()}
    return HeteroGraph.from_edge_index_dict(index, NUM_NODES)


def sampled(fanouts=(3, 4), seeds=7):
    sampler = dgl.dataloading.NeighborSampler(list(fanouts))
    _, _, blocks = sampler.sample_blocks(dgl_graph(), {"paper": torch.arange(seeds)})
    return blocks


def features(counts, width=24, dtype=torch.float32, seed=3):
    random = torch.Generator().manual_seed(seed)
    return {ntype: torch.randn(count, width, generator=random).to(dtype) for ntype, count in counts.items()}


def adjacency(g):
    """Edges in the order of edge data."""
    return torch.stack(g.edges()).tolist()
