"""Sums of codes of 8 bits: rounded once, whatever the scales, degrees, widths and ids are, and clear errors."""

import pytest
import torch

import halfgnn
from halfgnn import ops, reference
from halfgnn.dataloading import Codes
from tests import support
from tests.ops.test_dequantize import CODES, PER, VALUES, make_codes, make_scale

raw = torch.ops.halfgnn.code_sum
WIDTHS = [1, 3, 15, 16, 17, 33, 63, 64, 65, 100, 128, 257]


def make(rows, *shape, code=torch.uint8, per="table", zero_points=True, dtype=torch.float16, device="cpu"):
    """Codes of finite values, with scales that are not 0."""
    data = make_codes(rows, *shape, dtype=code)
    if code.is_floating_point:
        data = torch.where(data.float().isfinite(), data.float(), 1.0).to(code)
    scale, zero = make_scale(data, per, zero_points)
    scale = torch.where(scale == 0, 0.25, scale)
    return Codes(data, scale, zero, dtype).to(device)


def values(codes):
    """In float64, unrounded."""
    data = codes.data.cpu().double()
    if codes.zero_point is not None:
        data = data - codes.zero_point.cpu().double()
    return data * codes.scale.cpu().double()


def check(g, codes, reduce="sum", weight=None, out_dtype=None, name=""):
    dtype = out_dtype or codes.dtype
    if weight is None:
        got = getattr(ops, f"copy_u_{reduce}")(g, codes, out_dtype=out_dtype)
    else:
        got = getattr(ops, f"u_mul_e_{reduce}")(g, codes, weight, out_dtype=out_dtype)
    assert got.dtype == dtype and got.is_contiguous() and got.device == g.device
    host, x = g.to("cpu"), values(codes)
    w = None if weight is None else weight.detach().cpu().double()
    op = "copy_lhs" if weight is None else "mul"
    truth = reference.gspmm(host, op, reduce, x, w)
    magnitude = reference.gspmm(host, op, reduce, x.abs(), None if w is None else w.abs())
    terms = max(1, int(host.in_degrees().max())) if host.num_dst else 1
    support.assert_accurate(got, support.Yardstick(truth, magnitude=magnitude, terms=terms), name)


# ---- values ------------------------------------------------------------------------------------------------------------------


def test_example(device):
    g, _ = support.example(device)
    data = torch.tensor([[10, 20], [30, 255], [7, 0]], dtype=torch.uint8, device=device)
    codes = Codes(data, torch.tensor(0.5, device=device), torch.tensor(10.0, device=device), torch.float32)
    assert codes.values().tolist() == [[0, 5], [10, 122.5], [-1.5, -5]]
    assert ops.copy_u_sum(g, codes).tolist() == [[-1.5, -5], [-1.5, 0], [10, 122.5]]
    assert ops.copy_u_mean(g, codes).tolist() == [[-1.5, -5], [-0.75, 0], [10, 122.5]]
    weight = torch.tensor([2.0, 3.0, 4.0, 0.5], device=device)
    assert ops.u_mul_e_sum(g, codes, weight).tolist() == [[-6, -20], [-0.75, 7.5], [30, 367.5]]


@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize("width", WIDTHS)
def test_widths(width, per, device):
    """Every code, type of values and type of ids, with and without zero points, at any alignment."""
    for i, code in enumerate(CODES):
        g = support.make_graph("skewed", support.IDTYPES[i % 2], device)
        codes = make(g.num_src, width, code=code, per=per, zero_points=width % 2 == 1, device=device)
        check(g, codes, "sum", out_dtype=VALUES[i % 3], name=f"{code}")
        codes = Codes(support.misaligned(codes.data.view(torch.uint8)).view(code), codes.scale, codes.zero_point)
        check(g, codes, "mean", out_dtype=VALUES[(i + 1) % 3], name=f"{code}, misaligned")


@pytest.mark.parametrize("graph", support.GRAPHS)
def test_graphs(graph, device):
    for idtype in support.IDTYPES:
        for identity in (True, False):
            g = support.make_graph(graph, idtype, device, identity)
            for per in PER:
                codes = make(g.num_src, 72, per=per, device=device)
                check(g, codes)
                check(g, codes, "mean", support.randn(g.num_edges, dtype=torch.float32, device=device))


@pytest.mark.parametrize("out_dtype", VALUES, ids=str)
@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize("code", CODES, ids=str)
def test_weights(code, per, out_dtype, device):
    """One number per edge, per edge and head, or per value; of any dtype, through edge ids or not."""
    shapes = [((40,), ()), ((40,), (1,)), ((3, 24), (3, 1)), ((2, 3, 16), (2, 1, 1)), ((4, 5), (4, 1)), ((18,), (18,))]
    for i, (columns, own) in enumerate(shapes):
        g = support.make_graph("skewed", support.IDTYPES[i % 2], device, identity=i % 3 == 0)
        codes = make(g.num_src, *columns, code=code, per=per, zero_points=i % 2 == 0, device=device)
        weight = support.randn(g.num_edges, *own, dtype=VALUES[i % 3], device=device)
        check(g, codes, "mean" if i == 1 else "sum", weight, out_dtype)


@pytest.mark.parametrize("degree", [255, 256, 257, 258, 512, 513, 70_000])
@pytest.mark.parametrize("code", [torch.uint8, torch.int8], ids=str)
def test_integers_do_not_overflow(code, degree, device):
    """Nothing but the largest code, or the smallest: sums are exact."""
    src = torch.arange(degree) % 3
    g = halfgnn.Graph.from_edges(src, torch.zeros(degree, dtype=torch.int64), num_src=3, num_dst=2).to(device)
    limits = torch.iinfo(code)
    for value in (limits.max, limits.min):
        data = torch.full((3, 130), value, dtype=code, device=device)
        for zero in (None, 3.0):
            zero_point = None if zero is None else torch.tensor(zero, device=device)
            codes = Codes(data, torch.tensor(0.5, device=device), zero_point, torch.float32)
            total = ops.copy_u_sum(g, codes)
            assert (total[0] == (value - (zero or 0)) * 0.5 * degree).all() and (total[1] == 0).all()


def test_hub(device):
    g = support.hub_graph(20_000, device=device)
    for code, per in [*zip(CODES, [*PER, "row"]), (torch.int8, "row")]:
        codes = make(g.num_src, 80, code=code, per=per, dtype=torch.float32, device=device)
        check(g, codes, name=f"{code} {per}")
        check(g, codes, "mean", support.randn(g.num_edges, dtype=torch.float32, device=device))


def test_zeros_add_up_to_zero(device):
    """Codes that are zero points, under any weights."""
    g = support.make_graph("skewed", device=device)
    data = torch.full((g.num_src, 70), 131, dtype=torch.uint8, device=device)
    weight = support.randn(g.num_edges, dtype=torch.float32, device=device)
    for shape in ((), (g.num_src, 1), (70,)):
        codes = Codes(data, torch.rand(shape, device=device), torch.full(shape, 131.0, device=device), torch.float32)
        assert not ops.copy_u_sum(g, codes).any() and not ops.u_mul_e_sum(g, codes, weight).any()


def test_fractions_as_zero_points(device):
    g = support.make_graph("skewed", device=device)
    for per in PER:
        codes = make(g.num_src, 150, per=per, dtype=torch.float32, device=device)
        codes = Codes(codes.data, codes.scale, codes.zero_point + 0.3, torch.float32)
        host, x, zero = g.to("cpu"), codes.data.cpu().double(), codes.zero_point.cpu().double()
        magnitude = reference.gspmm(host, "copy_lhs", "sum", (x + zero.abs()) * codes.scale.cpu().double().abs(), None)
        truth = reference.gspmm(host, "copy_lhs", "sum", values(codes), None)
        yardstick = support.Yardstick(truth, magnitude=magnitude, terms=int(host.in_degrees().max()))
        support.assert_accurate(ops.copy_u_sum(g, codes), yardstick, per)


@pytest.mark.parametrize("width", [3, 40, 130])
@pytest.mark.parametrize("code", CODES[2:], ids=str)
def test_nan_and_infinity(code, width, device):
    """All 256 codes of float8, nan and infinities among them."""
    g = halfgnn.Graph.from_edges(torch.arange(256), torch.arange(256), num_src=256, num_dst=256).to(device)
    data = torch.arange(256, dtype=torch.uint8, device=device).view(256, 1).expand(256, width).contiguous().view(code)
    codes = Codes(data, torch.tensor(1.0, device=device), dtype=torch.float32)
    expected = data.float()
    torch.testing.assert_close(ops.copy_u_sum(g, codes), expected, rtol=0, atol=0, equal_nan=True)
    weight = torch.full((256,), 2.0, device=device)
    torch.testing.assert_close(ops.u_mul_e_sum(g, codes, weight), 2 * expected, rtol=0, atol=0, equal_nan=True)


def test_scale_of_zero(device):
    g = support.make_graph("skewed", device=device)
    codes = make(g.num_src, 70, device=device)
    assert not ops.copy_u_sum(g, Codes(codes.data, torch.zeros((), device=device))).any()


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_rows_without_columns(shape, device):
    g = support.make_graph("random", device=device)
    codes = make(g.num_src, *shape, device=device)
    assert ops.copy_u_sum(g, codes).shape == (g.num_dst, *shape)
    if shape == ():
        check(g, codes)


def test_strided_rows(device):
    g = support.make_graph("random", device=device)
    codes = make(g.num_src, 90, device=device)
    check(g, Codes(codes.data[:, 5:75], codes.scale, codes.zero_point))


# ---- PyTorch -----------------------------------------------------------------------------------------------------------------


def test_opcheck(device):
    g = support.make_graph("random", device=device)
    weight = support.randn(g.num_edges, 1, dtype=torch.float32, device=device)
    codes = make(g.num_src, 20, per="row", device=device)
    arguments = (*g.csc(), "mean", codes.data, codes.scale, codes.zero_point, weight, torch.bfloat16)
    torch.library.opcheck(raw.default, arguments)


def test_compiled(device):
    g = support.make_graph("random", device=device)
    codes = make(g.num_src, 20, device=device)
    weight = support.randn(g.num_edges, dtype=torch.float32, device=device)

    def layer(data, scale, zero_point, weight):
        codes = Codes(data, scale, zero_point)
        return ops.copy_u_mean(g, codes) + ops.u_mul_e_sum(g, codes, weight)

    arguments = codes.data, codes.scale, codes.zero_point, weight
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*arguments), layer(*arguments))


def test_forward_mode_derivatives_of_weights_are_not_lost():
    g = support.make_graph("random")
    codes, weight = make(g.num_src, 8), support.randn(g.num_edges, dtype=torch.float32)
    with pytest.raises(ValueError, match="y requires a gradient"):
        torch.func.jvp(lambda w: ops.u_mul_e_sum(g, codes, w), (weight,), (weight,))
    with torch.autograd.forward_ad.dual_level():  # of other tensors
        check(g, codes, weight=weight)


# ---- errors ------------------------------------------------------------------------------------------------------------------


def test_errors_of_codes():
    data, scale = torch.zeros(3, 4, dtype=torch.uint8), torch.tensor(1.0)
    for arguments, kind, message in [
        (([1], scale), TypeError, "data is a list; expected a torch.Tensor"),
        ((data, 1.0), TypeError, "scale is a float; expected a torch.Tensor"),
        ((data, scale, 0), TypeError, "zero_point is a int; expected a torch.Tensor"),
        ((data.float(), scale), TypeError, "data has dtype torch.float32; expected torch.uint8"),
        ((data, scale, None, torch.float64), TypeError, "dtype is torch.float64; expected torch.float16"),
    ]:
        with pytest.raises(kind, match=message):
            Codes(*arguments)


def test_errors(device):
    g, _ = support.example(device)
    codes = make(3, 4, device=device)
    data, scale, zero, weight = codes.data, codes.scale, codes.zero_point, torch.ones(4, device=device)
    float8 = make(3, 4, code=torch.float8_e5m2, device=device)
    four = make(4, 4, device=device)
    for call, kind, message in [
        (lambda: ops.copy_u_max(g, codes), TypeError, r"x is codes of 8 bits; expected .* for copy_lhs and max.*x.values\(\)"),
        (lambda: ops.u_add_e_sum(g, codes, weight), TypeError, "x is codes of 8 bits"),
        (lambda: ops.u_mul_v(g, codes, codes), TypeError, r"y is a Codes; expected a torch.Tensor: y.values\(\)"),
        (lambda: ops.copy_e_sum(g, codes), TypeError, "x is a Codes"),
        (lambda: ops.u_mul_e_sum(g, codes.values(), codes), TypeError, "y is a Codes"),
        (lambda: ops.copy_u_sum(g, four), ValueError, r"x has shape \(4, 4\); expected 3 rows"),
        (lambda: ops.u_mul_e_sum(g, codes, weight[1:]), ValueError, r"y has shape \(3,\); expected 4 rows"),
        (lambda: ops.u_mul_e_sum(g, codes, None), TypeError, "y is None"),
        (lambda: ops.u_mul_e_sum(g, codes, weight.new_ones(4, 2)), ValueError, r"y has shape \[4, 2\]; expected one"),
        (lambda: ops.u_mul_e_sum(g, codes, weight.double()), TypeError, "y has dtype torch.float64"),
        (lambda: ops.u_mul_e_sum(g, codes, weight.clone().requires_grad_()), ValueError, r"y requires a gradient.*y.detach\(\)"),
        (lambda: ops.copy_u_sum(g, codes, out_dtype=torch.float64), TypeError, "out_dtype is torch.float64"),
        (lambda: ops.copy_u_sum(g, Codes(data, scale.expand(2))), ValueError, "scale has strides"),
        (lambda: ops.copy_u_sum(g, Codes(data, torch.ones(2, device=device))), ValueError, r"scale has shape \[2\]; expected \[\]"),
        (lambda: ops.copy_u_sum(g, Codes(data, scale.double())), TypeError, "scale has dtype torch.float64"),
        (lambda: ops.copy_u_sum(g, Codes(data, scale, zero.view(1))), ValueError, r"zero_point has shape \[1\]"),
        (lambda: ops.copy_u_sum(g, Codes(float8.data, scale, zero)), TypeError, "zero_point is given for torch.float8_e5m2"),
        (lambda: raw(*g.csc(), "max", data, scale, zero, None, torch.half), ValueError, "reduce is 'max'; expected sum or mean"),
        (lambda: raw(*g.csc(), "sum", data.float(), scale, zero, None, torch.half), TypeError, "codes has dtype torch.float32"),
        (lambda: raw(*g.csc(), "sum", data[0, 0], scale, zero, None, torch.half), ValueError, "codes has no dimensions"),
        (lambda: raw(*g.csc(), "sum", data, scale, zero, weight[1:], torch.half), ValueError, r"weight has shape \[3\]"),
        (lambda: raw(*g.csc(), "sum", data, scale, zero, None, torch.double), TypeError, "out_dtype is torch.float64"),
    ]:  # fmt: skip
        with pytest.raises(kind, match=message):
            call()
    with torch.no_grad():
        ops.u_mul_e_sum(g, codes, weight.clone().requires_grad_())
