"""What is predicted of many GPUs rests on ghosts that are counted."""

import pytest

from halfgnn.distributed import partition
from halfgnn.distributed.partition import owners

from .scale import INFINIBAND, LAUNCH, MESSAGE, NVLINK, SHARE, Clock, Part, mesh, parts_of
from .tables import H200


def test_ghosts_are_those_of_the_partition(tmp_path):
    g = mesh(30)
    sizes = partition(g, 16, out=tmp_path)["parts"]
    parts = parts_of(g, owners(g, 16, "communities"), 16)
    assert [(p.nodes, p.edges, sum(p.ghosts)) for p in parts] == [(s["nodes"], s["edges"], s["ghosts"]) for s in sizes]
    assert all(part.edges_of_own < part.edges for part in parts)
    near, far = (sum(part.ghosts[i] for part in parts) for i in (0, 1))
    assert near > 0 and far > 0 and all(1 <= part.peers <= 8 for part in parts)


def test_times(planners):
    clock = Clock(planners, planners.gpus()[H200], 1000)
    part = Part(1000, 8000, 7000, (400, 40), 2)
    assert clock.halo(part) == pytest.approx(LAUNCH + 2 * MESSAGE + 40_000 / (SHARE * INFINIBAND))
    assert clock.halo(part._replace(peers=0, ghosts=(400, 0))) == pytest.approx(LAUNCH + 400_000 / (SHARE * NVLINK))
    assert clock.all_gather(8000, 8) == pytest.approx(LAUNCH + 8_000_000 / (SHARE * NVLINK))
    far = 8_000_000 * 3 / 4 / 8 / (SHARE * INFINIBAND)
    assert clock.all_gather(8000, 32) == pytest.approx(LAUNCH + 3 * MESSAGE + far)
    assert LAUNCH < clock.layer(part, 8000) < clock.layer(part._replace(nodes=10_000), 80_000)
