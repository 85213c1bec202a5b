"""The simulator itself: what its collectives return, what it finds wrong, what its negative controls break.

Runs on the simulator (laboratory/simt/run.py). Where a sanitizer ends the process, the kernel runs in another one.
"""

import ctypes
import functools

import numpy as np
import pytest
import torch

from laboratory.simt import build, control

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

GARBAGE = -0x32323233  # 0xcdcdcdcd
VALUES = np.arange(64, dtype=np.int32)


@functools.cache
def library():
    loaded = ctypes.CDLL(str(build.SELFTEST))
    loaded.simt_selftest.restype = ctypes.c_char_p
    loaded.simt_get.restype = ctypes.c_longlong
    loaded.simt_selftest.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 3, *[ctypes.c_void_p] * 2, ctypes.c_int]
    return loaded


library()  # before a failure is described: libraries that come later are not known by name then


def launch(name, *, blocks=1, threads=32, shared=0, given=VALUES, results=128, n=0, **settings):
    """What a kernel of selftest.cu wrote, and the message it ended with."""
    out = np.zeros(results, dtype=np.int32)
    before = {setting: library().simt_get(setting.encode()) for setting in settings}
    for setting, value in settings.items():
        assert library().simt_set(setting.encode(), value)
    data = given.ctypes.data if isinstance(given, np.ndarray) else given.data_ptr()
    message = library().simt_selftest(name.encode(), blocks, threads, shared, data, out.ctypes.data, n)
    for setting, value in before.items():
        library().simt_set(setting.encode(), value)
    return out, message.decode()


def run(name, **arguments):
    out, message = launch(name, **arguments)
    assert message == ""
    return out


def launch_in_fork(name, **arguments):
    """Whether the kernel ran to its end in a process of its own (None: the process did not), and what that wrote."""
    return control.forked(lambda: launch(name, **arguments)[1] == "")


# ---- what collectives return ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_collectives(seed):
    out = run("collectives", threads=64, results=512, seed=seed).reshape(2, 32, 8)
    lane = np.arange(32)
    for warp in range(2):
        value = lane + 32 * warp
        expected = [
            value[(lane + 5) % 32],
            np.where(lane < 3, value, value - 3),
            np.where(lane > 28, value, value + 3),
            value[lane ^ 7],
            value[lane // 8 * 8 + (lane + 9) % 8],
            np.full(32, sum(1 << int(i) for i in lane if value[i] % 3 == 0), dtype=np.uint32).view(np.int32),
            np.full(32, warp * 3),
            np.full(32, value[31]),
        ]
        for got, wanted in zip(out[warp].T, expected):
            assert got.tolist() == wanted.tolist()


def test_halves_of_a_warp_at_their_own_pace():
    lane = np.arange(32)
    pair = lane + (lane ^ 1)
    expected = np.where(lane < 16, pair * 4, pair * 16)
    assert run("partial_masks")[:32].tolist() == expected.tolist()


@pytest.mark.parametrize("arch", [750, 800, 900])
def test_the_greatest_value_of_a_warp(arch):
    for shift in (0, 7, 24, 31):
        given = np.roll(VALUES[:32] - 40, shift)  # below 0
        assert (run("greatest", given=given, arch=arch)[:32] == -9).all()
    given = np.array([-(1 << 31), *[-7] * 30, (1 << 31) - 1], dtype=np.int32)
    assert (run("greatest", given=given, arch=arch)[:32] == given.max()).all()


def test_maxima_of_some_lanes():
    given = np.array([-5, -3, -9, -4, -8, *[7] * 27], dtype=np.int32)
    assert run("reduce_max", given=given)[:6].tolist() == [-3] * 5 + [0]


@pytest.mark.parametrize(
    "kernel,what", [("reduce_max", "__reduce_max_sync()"), ("movmatrix", "there are no such tensor cores")]
)
def test_what_only_later_architectures_have(kernel, what):
    assert launch(kernel, arch=800)[1] == ""
    _, message = launch(kernel, arch=750)
    assert what in message and "before sm_80" in message


@pytest.mark.parametrize("seed", range(5))
def test_shared_memory_and_barriers(seed):
    out = run("block_sum", threads=64, n=2, seed=seed)
    assert (out[:64] == 2016).all() and (out[64:] == 2016 + 64).all()
    assert (run("neighbour", threads=64, shared=256, seed=seed)[:64] == VALUES ^ 1).all()


def test_partial_warps_and_three_dimensions():
    out = run("order_of_lanes", threads=21)
    assert out[0] == 21 and sorted(out[1:22]) == list(range(21))


# ---- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel,shape", [("order_of_lanes", {"threads": 64}), ("order_of_blocks", {"blocks": 64, "threads": 1})]
)
def test_order_is_random_and_drawn_from_the_seed(kernel, shape):
    def order(seed):
        library().simt_set(b"launches", 0)
        return run(kernel, seed=seed, **shape)[1:65].tolist()

    orders = [order(seed) for seed in (1, 2, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(64))
    assert orders[0] == orders[2] != orders[1]
    assert orders[0] != list(range(64)) != orders[1]


def test_order_differs_from_launch_to_launch():
    assert run("order_of_lanes").tolist() != run("order_of_lanes").tolist()


# ---- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel,threads,parts", [
    ("missing_lanes", 32, ["wait for others", "lanes 0-15 at __shfl_sync of 0xffffffff in selftest.cu:", "lanes 16-31 exited"]),
    ("different_collectives", 32, ["different collectives", "lanes 0-15 at __shfl_sync", "lanes 16-31 at __any_sync"]),
    ("different_masks", 32, ["lane 0 at __syncwarp of 0xffffffff"]),
    ("divergent_barrier", 64, ["warp 0: lanes 0-31 at __syncthreads", "warp 1: lanes 0-31 exited"]),
    ("different_barriers", 64, ["different barriers"]),
    ("not_in_mask", 32, ["0x0000ffff does not name"]),
    ("source_not_in_mask", 32, ["from lane 20, which the mask 0x0000ffff does not name"]),
])  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_misused_collectives(kernel, threads, parts, seed):
    _, message = launch(kernel, threads=threads, seed=seed)
    for part in [*parts, "block (0, 0, 0) of (1, 1, 1)", kernel]:
        assert part in message
    assert (run("neighbour", threads=64, shared=256)[:64] == VALUES ^ 1).all()  # and the next kernel is none the worse


@pytest.mark.parametrize("kernel,part", [("assertion", "assertion args.in[threadIdx.x] >= 0"), ("trap", "__trap()")])
def test_assertions_and_traps(kernel, part):
    assert launch(kernel)[1] == ""
    message = launch(kernel, given=np.where(VALUES == 17, -1, VALUES).astype(np.int32))[1]
    assert part in message and "thread (17, 0, 0)" in message


@pytest.mark.parametrize("kernel,parts", [
    ("race_in_a_warp", ["warp 0 reads at selftest.cu:", "warp 0 writes at selftest.cu:"]),
    ("race_between_warps", ["reads at selftest.cu:", "writes at selftest.cu:"]),
    ("race_of_a_sum", ["warp 1 reads at selftest.cu:", "warp 0 writes at selftest.cu:"]),
    ("race_with_the_next_round", ["warp 0 writes at selftest.cu:", "warp 1 reads at selftest.cu:"]),
])  # fmt: skip
@pytest.mark.parametrize("seed", range(5))
def test_races_over_shared_memory(kernel, parts, seed):
    """Whatever the order of lanes is, and whatever they happen to read."""
    threads = 32 if "in_a_warp" in kernel else 64
    _, message = launch(kernel, threads=threads, shared=256, seed=seed)
    for part in ["a race over shared memory", *parts, kernel]:
        assert part in message
    assert launch(kernel, threads=threads, shared=256, seed=seed, n=1)[1] == ""  # with the barrier
    assert launch(kernel, threads=threads, shared=256, seed=seed, races=0)[1] == ""


MISTAKES = {
    "no fence before": 1, "no fence after": 2, "reads before": 3, "no atomic": 4, "no barrier before": 5, "no barrier after": 6,
}  # fmt: skip


@pytest.mark.parametrize("blocks,threads", [(7, 32), (3, 64), (1, 64)])
@pytest.mark.parametrize("seed", range(4))
def test_the_last_to_arrive(blocks, threads, seed):
    """Whichever block comes last. A mistake is found though blocks run one after the other, whatever they read."""
    shape = {"blocks": blocks, "threads": threads, "results": 300, "seed": seed}
    out = run("last_to_arrive", **shape)
    assert out[0] == blocks * threads // 32 and out[1] == blocks * VALUES[:threads].sum()
    for name, n in MISTAKES.items():
        message = launch("last_to_arrive", n=n, **shape)[1]
        for part in ["a race over global memory: warp", "at selftest.cu:", "nothing orders them", "last_to_arrive"]:
            assert part in message, name
        assert ("in another block" in message) or blocks == 1 or threads == 64
        assert launch("last_to_arrive", n=n, races=0, **shape)[1] == ""
    assert "a race over global memory" in launch("last_to_arrive", fences=0, **shape)[1]


WRONG_COPIES = {
    "no wait": 1, "a wait for a group too few": 2, "groups that do not end": 3, "no barrier for others": 4,
    "a stage that is still read": 5, "a thread ends before it has waited": 6, "no barrier before the next copy": 7,
}  # fmt: skip
RING = 3 * 16  # bytes of a thread


@pytest.mark.parametrize("arch", [750, 800, 900])
@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("seed", range(3))
def test_a_ring_of_copies(arch, threads, seed):
    """A mistake is found whatever its lanes read. Before sm_80 copies are done at once, and only barriers can be missing."""
    shape = {"threads": threads, "shared": RING * threads, "seed": seed, "arch": arch}
    quads = VALUES.reshape(16, 4).sum(1)
    own = [sum(quads[(step * threads + lane) % 16] for step in range(8)) for lane in range(threads)]
    expected = [own[lane] + own[lane ^ 1] for lane in range(threads)]
    assert run("ring_of_copies", **shape)[:threads].tolist() == expected
    for name, n in WRONG_COPIES.items():
        message = launch("ring_of_copies", n=n, **shape)[1]
        is_race = "a race over shared memory: warp" in message
        if n in (4, 7) or (n == 5 and arch == 750):
            assert is_race or n == 5 or (n == 7 and "waited for" in message), name  # 7: whichever lane comes first
        elif arch > 750:
            assert "waited for" in message and "ring_of_copies" in message, name
        else:
            assert message == "", name


@pytest.mark.parametrize("n", [1, 2, 3])
def test_what_is_read_before_it_has_been_waited_for(n):
    shape = {"shared": RING * 32, "races": 0}
    assert (run("ring_of_copies", n=n, **shape) != run("ring_of_copies", **shape)).any()


def test_copies_off():
    shape = {"shared": RING * 32, "copies": 0}
    assert "waited for" in launch("ring_of_copies", **shape)[1]
    assert (run("ring_of_copies", races=0, **shape)[:32] == (64 * GARBAGE + 2**31) % 2**32 - 2**31).all()


def test_copies_that_cuda_refuses():
    lane = np.arange(32)
    assert (run("copies_to_one_place")[:32] == 4 * (lane % 8 + (lane + 1) % 8)).all()
    assert (run("copies_to_one_place", n=4)[:32] == 4 * (lane % 8)).all()
    assert (run("copies_to_one_place", n=8)[:32] == 8 * (lane % 8)).all()
    assert "a copy to a misaligned address" in launch("copies_to_one_place", n=1)[1]
    assert "a copy to what is not shared memory" in launch("copy_to_global")[1]
    ran, output = launch_in_fork("copies_to_one_place", n=2)
    assert ran is None and "misaligned address" in output


@pytest.mark.parametrize("seed", range(4))
def test_blocks_at_one_place(seed):
    """Writes of two blocks, and a write after a read."""
    for kernel, threads in (("same_place", 32), ("read_place", 1)):
        assert "a race over global memory" in launch(kernel, blocks=2, threads=threads, seed=seed)[1]
        assert launch(kernel, blocks=1, threads=threads, seed=seed)[1] == ""  # and nothing is left of the last launch
    assert run("same_place", blocks=5, n=1, seed=seed)[0] == 160


@pytest.mark.parametrize("seed", range(4))
def test_lanes_that_write_the_same_by_one_instruction(seed):
    """As those that share an edge do; warps may not."""
    assert launch("same_place", n=2, threads=32, seed=seed)[1] == ""
    assert "a race over global memory" in launch("same_place", n=2, threads=64, seed=seed)[1]


def test_shared_memory_starts_as_garbage():
    assert (run("uninitialised", blocks=5, shared=128)[:10] == GARBAGE).all()


def test_launches_that_cuda_refuses():
    for refused in ({"threads": 1025}, {"threads": 0}, {"blocks": 0}):
        assert launch("neighbour", **refused)[1] == "invalid configuration argument"
    assert launch("neighbour", shared=48 * 1024 + 1)[1] == "invalid argument"


# ---- negative controls ---------------------------------------------------------------------------


def test_shuffles_off():
    assert (run("block_sum", threads=64, n=2, shuffles=0)[:64] != 2016).all()


@pytest.mark.parametrize("seed", range(3))
def test_barriers_dropped(seed):
    """Without its barrier a kernel sees garbage, or values of another round."""
    assert (run("neighbour", threads=64, shared=256, warp_barriers=0, races=0, seed=seed)[:64] != VALUES ^ 1).any()
    out = run("block_sum", threads=64, n=2, block_barriers=0, races=0, seed=seed)
    assert (out != np.repeat([2016, 2016 + 64], 64)).any()


# ---- sanitizers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [33, 1024])
def test_read_past_a_tensor(size):
    """PyTorch's allocations have red zones: one element past the end is seen."""
    tensor = torch.arange(size, dtype=torch.int32)
    assert (run("read", given=tensor, n=size - 32)[:32] == tensor[-32:].numpy()).all()
    ran, output = launch_in_fork("read", given=tensor, n=size - 31)
    assert ran is None and "AddressSanitizer: heap-buffer-overflow" in output
    assert "READ of size 4" in output and "selftest.cu" in output


@pytest.mark.parametrize("kernel,arguments,report", [
    ("misaligned", {"n": 1}, "misaligned address"),
    ("dynamic_overrun", {"shared": 128, "n": 1}, "AddressSanitizer: use-after-poison"),
    ("static_overrun", {"n": 1}, "index 32 out of bounds for type 'int [32]'"),
    ("local_overrun", {"n": 4}, "AddressSanitizer: stack-buffer-overflow"),
])  # fmt: skip
def test_accesses_out_of_bounds(kernel, arguments, report):
    assert launch_in_fork(kernel, **{**arguments, "n": 0})[0]
    ran, output = launch_in_fork(kernel, races=0, **arguments)  # of lanes that read past their own places too
    assert ran is None and report in output and "selftest.cu" in output
