"""What arguments of modules do that no comparison with another library's modules shows: defaults, spellings, smallest values."""

import pytest
import torch

import halfgnn
from halfgnn import nn, pyg

SRC, DST = torch.tensor([0, 1, 2, 2, 1]), torch.tensor([1, 2, 0, 1, 0])
EDGE_INDEX = torch.stack([SRC, DST])


def graph():
    return halfgnn.Graph.from_edges(SRC, DST, num_src=3, num_dst=3)


def test_edge_weights_are_normalised_by_their_sums_alone():
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    sums = torch.zeros(3).index_add(0, DST, weight)
    torch.testing.assert_close(nn.EdgeWeightNorm("right")(graph(), weight), weight / sums[DST])


def test_rgat_of_one_head():
    etypes = [("paper", "cites", "paper")]
    model = nn.RGAT(4, 6, 2, etypes, "paper", num_heads=1)
    assert model.convs[0][str(etypes[0])].attn_l.shape == (1, 1, 6)
    with pytest.raises(ValueError, match="num_heads is 0"):
        nn.RGAT(4, 6, 2, etypes, "paper", num_heads=0)


def test_an_lstm_takes_rows_of_features():
    conv, feat = nn.SAGEConv(4, 2, "lstm"), torch.randn(3, 5, 4)
    with pytest.raises(ValueError, match=r"feat has shape \(3, 5, 4\)"):
        conv(graph(), feat)
    assert nn.SAGEConv(4, 2, "mean")(graph(), feat).shape == (3, 5, 2)


def test_self_loops_may_have_the_sum_of_the_attributes():
    torch.manual_seed(0)
    conv, x, attr = pyg.GATConv(4, 2, edge_dim=3, fill_value="add"), torch.randn(3, 4), torch.randn(5, 3)
    sums = torch.zeros(3, 3).index_add(0, DST, attr)
    with_loops = torch.cat([EDGE_INDEX, torch.arange(3).expand(2, 3)], 1)
    own = pyg.GATConv(4, 2, edge_dim=3, add_self_loops=False)
    own.load_state_dict(conv.state_dict())
    torch.testing.assert_close(conv(x, EDGE_INDEX, attr), own(x, with_loops, torch.cat([attr, sums])))


@pytest.mark.parametrize("module", [pyg.GATConv, pyg.GATv2Conv, pyg.TransformerConv])
def test_without_edge_attributes_nothing_is_kept_per_edge(module):
    def kept(**options):
        torch.manual_seed(0)
        edge_index, shapes = torch.randint(3, (2, 50)), []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: shapes.append(x.shape) or x, lambda x: x)
        with hooks:
            module(4, 2)(torch.randn(3, 4, requires_grad=True), edge_index, **options)
        return {shape for shape in shapes if len(shape) > 1 and shape[0] >= 20}

    assert not kept()
    assert kept(return_attention_weights=True)


def test_what_a_module_calls_must_be_callable():
    with pytest.raises(TypeError, match=r"^apply_func is 5; expected a module"):
        nn.GINConv(5, "sum")
    with pytest.raises(TypeError, match=r"^mods\['r'\] is None; expected a torch.nn.Module"):
        nn.HeteroGraphConv({"r": None})
