"""What calls of operators bring about: their fake kernels beside them, what is kept for a backward, and all that is returned."""

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map


class BesideFakes(TorchDispatchMode):
    """Calls the fake kernel of every operator of halfgnn after the operator itself, and compares their results."""

    def __init__(self):
        super().__init__()
        self.calls = set()
        self.fake = FakeTensorMode()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "halfgnn":
            with self.fake:
                fakes = tree_map(lambda x: self.fake.from_tensor(x) if isinstance(x, torch.Tensor) else x, args)
                promised = func(*fakes, **(kwargs or {}))
            assert described(promised) == described(out), f"{func}{[described(x) for x in args]}"
            self.calls.add(str(func).split(".")[1])
        return out


def described(out):
    return [(x.shape, x.dtype, x.stride()) if isinstance(x, torch.Tensor) else x for x in tree_flatten(out)[0]]


def beside_fakes(call, *operands):
    """Compares call() and its backward with their fakes, with gradients for all operands, for each alone, and for none.
    Returns the names of the operators that were called."""
    count = len(operands)
    with BesideFakes() as mode:
        for wanted in {(True,) * count, (False,) * count, *(tuple(i == j for i in range(count)) for j in range(count))}:
            leaves = [x if x is None else x.clone().requires_grad_(want) for x, want in zip(operands, wanted)]
            out = call(*leaves)
            if out.requires_grad:
                out.backward(torch.ones_like(out))
    return mode.calls


def kept(run):
    """Data pointers and shapes of all tensors that run() keeps for its backward."""
    found = []

    def pack(tensor):
        found.append((tensor.data_ptr(), tuple(tensor.shape)))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run()
    assert out.requires_grad
    return found


class Made(TorchDispatchMode):
    """Shapes of all that operators return."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        for x in results if isinstance(results, (tuple, list)) else (results,):
            self.shapes += [tuple(x.shape)] if isinstance(x, torch.Tensor) else []
        return results
