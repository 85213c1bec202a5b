"""The table of GPUs, and the rule for those that it lacks."""

import pytest

from .planners import MB

GB = 1 << 30


def test_the_table(planners):
    gpus = planners.gpus()
    assert len(gpus) == 9
    for name in ("A100-SXM4-40GB", "A100-SXM4-80GB", "H100 PCIe", "H100 80GB HBM3", "H200", "L40S", "B200"):
        assert f"NVIDIA {name}" in gpus
    assert {"NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090"} < gpus.keys()
    for device in gpus.values():
        assert 40 * MB <= device.l2_bytes <= 126 * MB and 24 * GB <= device.memory_bytes <= 180 * GB
        assert 1 < device.cache / device.memory < 8
        assert 1e9 < device.issue / device.multiprocessors / 4 < 2.6e9  # the clock
    h100, h200 = gpus["NVIDIA H100 80GB HBM3"], gpus["NVIDIA H200"]
    assert (h100.cache, h100.memory, h100.issue) == (8.1e12, 3.0e12, pytest.approx(132 * 4 * 1.7e9))
    assert (h200.cache, h200.memory, h200.memory_bytes) == (9.6e12, 4.3e12, 141 * GB)


def test_a_known_gpu_has_the_rates_of_the_table_and_its_own_sizes(planners):
    for name, gpu in planners.gpus().items():
        found = planners.device_from_facts(name, (8, 0), 123 * MB, 7 * GB, gpu.multiprocessors, 1e9, 1e9, 512)
        assert (found.l2_bytes, found.memory_bytes, found.multiprocessors) == (123 * MB, 7 * GB, gpu.multiprocessors)
        assert (found.cache, found.memory, found.issue) == (gpu.cache, gpu.memory, gpu.issue)


def test_a_gpu_of_another_size_or_name_has_rates_by_rule(planners):
    whole = planners.gpus()["NVIDIA H200"]
    for name, multiprocessors in (("NVIDIA H200", 60), ("NVIDIA H200 MIG 1g.18gb", 132)):
        found = planners.device_from_facts(name, (9, 0), 50 * MB, 18 * GB, multiprocessors, 1.9e9, 3e9, 1024)
        assert found.cache == multiprocessors * 1.9e9 * 35 != whole.cache
        assert found.issue == multiprocessors * 1.9e9 * 4 != whole.issue
        assert found.memory == pytest.approx(0.9 * 2 * 3e9 * 1024 / 8)


@pytest.mark.parametrize("capability,bytes_per_clock", [
    ((7, 0), 35), ((7, 5), 15), ((8, 0), 35), ((8, 6), 15), ((8, 9), 15), ((9, 0), 35), ((10, 0), 35), ((10, 3), 35),
    ((11, 0), 15), ((12, 0), 15), ((12, 1), 15),
])  # fmt: skip
def test_caches_of_gpus_with_hbm_are_wider(planners, capability, bytes_per_clock):
    assert planners.device_from_facts("?", capability, multiprocessors=10, clock=1e9).cache == 10e9 * bytes_per_clock


def test_what_cuda_does_not_say_is_that_of_an_h100(planners):
    ordinary = planners.default_device()
    found = planners.device_from_facts(multiprocessors=100)
    assert (found.cache, found.memory, found.issue) == (ordinary.cache, ordinary.memory, ordinary.issue)
    h100 = planners.gpus()["NVIDIA H100 80GB HBM3"]
    assert (h100.cache, h100.memory, h100.issue) == (ordinary.cache, ordinary.memory, ordinary.issue)
    assert ordinary.multiprocessors == h100.multiprocessors and ordinary.l2_bytes == ordinary.memory_bytes == 0


@pytest.mark.parametrize("memory_clock,bus_bits", [(0.0, 0), (4.266e9, 0), (0.0, 256)])
def test_memory_of_which_cuda_says_nothing_is_slow_without_hbm(planners, memory_clock, bus_bits):
    """As on a GB10, whose memory is the CPU's: 12.1, 48 multiprocessors, 24 MiB of L2."""

    def found(capability, bus_bits=bus_bits, memory_clock=memory_clock):
        return planners.device_from_facts(
            "NVIDIA GB10", capability, 24 * MB, 120 * GB, 48, 2.4e9, memory_clock, bus_bits
        )

    assert found((12, 1)).memory == found((8, 7)).memory == found((11, 0)).memory == 0.3e12
    assert found((9, 0)).memory == planners.default_device().memory  # some GPU with HBM
    assert found((12, 1), 256, 4.266e9).memory == pytest.approx(0.9 * 0.273e12, rel=1e-3)
    # Most reads of 512 bytes miss in the cache. With an H100's rate of memory, rows are left whole.
    graph = (1_000_000, 5_000_000)
    gb10, hasty = found((12, 1)), found((12, 1))
    hasty.memory = planners.default_device().memory
    assert planners.lanes(gb10, *graph, 512).slices > planners.lanes(hasty, *graph, 512).slices == 1


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA L40S", "NVIDIA A100-SXM4-80GB"])
def test_the_rule_is_near_the_table(planners, name):
    gpu = planners.gpus()[name]
    facts = {
        "NVIDIA H100 80GB HBM3": ((9, 0), 1.7e9, 2.619e9, 5120),
        "NVIDIA L40S": ((8, 9), 2.52e9, 9.001e9, 384),
        "NVIDIA A100-SXM4-80GB": ((8, 0), 1.41e9, 1.593e9, 5120),
    }
    capability, *rest = facts[name]
    found = planners.device_from_facts("another", capability, 50 * MB, GB, gpu.multiprocessors, *rest)
    assert found.cache == pytest.approx(gpu.cache, rel=0.05)
    assert found.memory == pytest.approx(gpu.memory, rel=0.06)
    assert found.issue == pytest.approx(gpu.issue, rel=0.01)
