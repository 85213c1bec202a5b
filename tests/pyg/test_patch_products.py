"""Products, sums and differences of the features of both ends under halfgnn.pyg.patch(): what is computed of every edge."""

import pytest
import torch

import halfgnn.pyg
from tests import support
from tests.pyg.test_patch_messages import Pairwise
from tests.pyg.test_patch_modules import NUM_NODES, WIDTH, assert_same, edges, randn, routed

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")


def product_written(a, b):
    product = a * b
    product += 1
    return product.sum(-1, keepdim=True)


def product_read_before(a, b):
    product = a * b
    return product.sum(-1, keepdim=True) * product.exp()


PRODUCTS = {  # name: (message, what is routed beside the reduction)
    "dot": (lambda a, b: (a * b).sum(-1, keepdim=True), {"gsddmm:v_dot_u"}),
    "dot from the right": (lambda a, b: (b * a).sum(dim=1).unsqueeze(1), {"gsddmm:u_dot_v"}),
    "product": (lambda a, b: a * b, set()),  # a's nodes are those of the sum
    "sum of all edges": (lambda a, b: b + (a * b).sum(0), {"gsddmm:v_mul_u"}),
    "sum of all": (lambda a, b: b + (a * b).sum(), {"gsddmm:v_mul_u"}),
    "sums of both dimensions": (lambda a, b: b + (a * b).sum((0, 1)), {"gsddmm:v_mul_u"}),
    "one-sided": (lambda a, b: (a * a).sum(-1, keepdim=True) + b, set()),  # so are they
    "scaled and shifted": (lambda a, b: (a * b + a) * 2 + 1, set()),
    "difference": (lambda a, b: (b + -1 * a).abs() + 0, {"gsddmm:u_add_v"}),
    "difference of nearly equal": (lambda a, b: b + -1 * a, {"gsddmm:u_add_v"}),
    "product written": (product_written, {"gsddmm:v_mul_u"}),
    "dot and product": (product_read_before, {"gsddmm:v_dot_u", "gsddmm:v_mul_u"}),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_both_ends(name):
    function, names = PRODUCTS[name]
    x = randn(NUM_NODES, WIDTH, seed=1)

    def run():
        leaf = x.clone().requires_grad_()
        out = Pairwise(function)(leaf, edges())
        with torch.no_grad():
            assert torch.equal(Pairwise(function)(x, edges()), out)
        return out.detach(), *torch.autograd.grad(out, leaf, randn(*out.shape, seed=4))

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)
    assert {name for name in routed() if name.startswith("gsddmm")} == names
