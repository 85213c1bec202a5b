"""The network: halfgnn's RGAT, or the same on DGL's kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from halfgnn.nn import RGAT

from .data import HeteroData


def make_model(data: HeteroData, width: int, args) -> RGAT:
    """The network for `data`, whose features have `width` numbers."""
    kind = RGAT if args.kernels == "halfgnn" else DglRGAT
    options = dict(num_layers=len(args.fanouts), num_heads=args.heads, dropout=args.dropout, norm=args.norm)
    return kind(width, args.hidden, data.num_classes, list(data.edges), data.target, **options)


class DglRGAT(RGAT):
    """The same network on DGL's kernels, relation by relation, for comparison. Blocks become DGL's."""

    def __init__(self, *args, num_heads: int = 4, **options):
        import dgl.nn

        super().__init__(*args, num_heads=num_heads, **options)
        for layer in self.convs:
            for etype, conv in layer.items():
                layer[etype] = dgl.nn.GATConv(conv._in_src_feats, conv._out_feats, num_heads, allow_zero_in_degree=True)
                layer[etype].load_state_dict(conv.state_dict())

    def forward(self, blocks, feats):
        h = dict(feats)
        for block, convs, norm, skip in zip(map(dgl_block, blocks), self.convs, self.norms, self.skips):
            out = {}
            for ntype in h:
                x = h[ntype][: block.num_dst_nodes(ntype)]
                out[ntype] = skip(x)
                for etype in block.canonical_etypes:
                    if etype[2] == ntype and str(etype) in convs:
                        out[ntype] = out[ntype] + convs[str(etype)](block[etype], (h[etype[0]], x)).flatten(1)
            x = self.dropout(F.elu(norm(torch.cat(list(out.values())))))
            h = dict(zip(out, x.split([len(part) for part in out.values()])))
        return self.mlp(h[self.target])


def dgl_block(block):
    """DGL's block of the same edges, on the block's device."""
    import dgl

    formats = {}
    for etype in block.topology:
        indptr, indices, _ = block.topology[etype].csc()
        edge_ids = torch.arange(
            len(indices), dtype=indices.dtype, device=indices.device
        )  # some of DGL's kernels need them
        formats[etype] = ("csc", (indptr, indices, edge_ids))
    return dgl.create_block(formats, block.topology.num_src, block.topology.num_dst)
