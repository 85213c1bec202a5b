"""SAGEConv of halfgnn.pyg on codes of 8 bits is that on their values."""

import pytest
import torch

from halfgnn import Graph, pyg
from halfgnn.dataloading import Codes
from tests.nn.test_codes import make


@pytest.mark.parametrize("options", [{}, {"aggr": "sum", "normalize": True}, {"root_weight": False}], ids=str)
def test_sage(options):
    g, codes = make()
    edge_index = torch.stack(g.edges())
    conv = pyg.SAGEConv(24, 8, **options)
    for graph in (edge_index, g):
        for x_dst in (codes.values(12), None):
            size = None if x_dst is not None else (20, 12)
            got = conv((codes, x_dst), graph, size)
            torch.testing.assert_close(got, conv((codes.values(), x_dst), graph, size), rtol=1e-4, atol=1e-5)
    got.sum().backward()
    assert conv.lin_l.weight.grad is not None


def test_errors():
    g, codes = make()
    x_dst = codes.values(12)
    for call, kind, message in [
        (lambda: pyg.SAGEConv(24, 8)(codes, g), TypeError, "x is codes of 8 bits; expected a pair"),
        (
            lambda: pyg.SAGEConv(24, 8, aggr="max")((codes, x_dst), g),
            TypeError,
            r"x\[0\] is codes of 8 bits, which are read by",
        ),
        (lambda: pyg.SAGEConv(24, 8, project=True)((codes, x_dst), g), TypeError, "without project"),
        (
            lambda: pyg.SAGEConv(7, 8)((codes, x_dst), g),
            ValueError,
            r"x\[0\] has shape \(20, 24\); expected \(20, \*, 7\)",
        ),
        (lambda: pyg.SAGEConv((24, 7), 8)((codes, x_dst), g), ValueError, r"x\[1\] has shape \(12, 24\)"),
        (
            lambda: pyg.SAGEConv(24, 8).half()((codes, x_dst), g),
            TypeError,
            r"x\[1\] has dtype torch.float32 and the module's",
        ),
        (lambda: pyg.GCNConv(24, 8)(codes, g), TypeError, r"x is a Codes; expected a torch.Tensor: x.values\(\)"),
    ]:
        with pytest.raises(kind, match=message):
            call()


def test_a_layer_computes_in_its_own_dtype():
    """Whatever that of the codes is."""
    g = Graph.from_edges(torch.arange(4), torch.zeros(4, dtype=torch.long), num_src=4, num_dst=1)
    codes = Codes(torch.full((4, 8), 100, dtype=torch.uint8), torch.tensor(200.0))
    layer, own = pyg.SAGEConv(8, 4, aggr="sum"), codes.values(1, torch.float32)
    out = layer((codes, own), g)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, layer((codes.values(dtype=torch.float32), own), g), rtol=1e-5, atol=0.01)
    assert layer.half()((codes, None), g, (4, 1)).dtype == torch.float16
