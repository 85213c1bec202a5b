"""Wrong arguments that modules refuse before they compute anything."""

import pytest
import torch

from halfgnn.nn import GraphConv
from tests.support import make_graph


@pytest.mark.parametrize(("in_feats", "out_feats"), [(7, 5), (5, 7)])
@pytest.mark.parametrize("own_weight", [True, False])
def test_graph_conv_names_the_dtypes(in_feats, out_feats, own_weight):
    g = make_graph("bipartite", torch.int64)
    conv = GraphConv(in_feats, out_feats, weight=own_weight, allow_zero_in_degree=True)
    x = torch.ones(g.num_src, in_feats)
    given = None if own_weight else torch.ones(in_feats, out_feats)
    for half in (torch.float16, torch.bfloat16):
        with pytest.raises(TypeError, match=rf"^feat has dtype {half} and the module's parameters torch.float32"):
            conv(g, x.to(half), given)
        with torch.autocast("cpu", half):
            assert conv(g, x.to(half), given).isfinite().all()
