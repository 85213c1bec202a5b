"""Files of graphs, data sets and GraphDataLoader of halfgnn.compat.dgl."""

import http.server
import os
import threading

import pytest
import torch

from halfgnn.compat.dgl.data.utils import download

from .pairs import assert_same, multigraph, ours, real, typed


def test_files_give_back_what_was_saved(tmp_path):
    graphs = [multigraph(ours, seed=1), typed(ours), multigraph(ours, 2, 0, torch.int32), multigraph(ours, seed=2)]
    graphs.append(ours.batch(graphs[::3]))
    path = str(tmp_path / "folder" / "graphs.bin")
    ours.save_graphs(path, graphs, {"y": torch.arange(5)}, formats=["csr"])
    loaded, labels = ours.load_graphs(path)
    assert_same(graphs, loaded)
    assert_same({"y": torch.arange(5)}, labels)
    assert "csr" in loaded[0].formats()["created"]
    assert_same([graphs[3], graphs[0]], ours.load_graphs(path, [3, 0])[0])
    assert loaded[0].batch_size == 1 and loaded[4].batch_num_nodes().tolist() == [9, 9]


def test_files_that_dgl_has_written(tmp_path):
    path = str(tmp_path / "graphs.bin")
    graphs = [
        multigraph(real),
        typed(real),
        multigraph(real, idtype=torch.int32).formats("csr"),
        multigraph(real).formats("csc"),
    ]
    real.save_graphs(path, graphs, {"y": torch.tensor([0.5, 2.0])})
    loaded, labels = ours.load_graphs(path)
    assert_same([multigraph(ours), typed(ours), multigraph(ours, idtype=torch.int32), multigraph(ours)], loaded)
    assert_same({"y": torch.tensor([0.5, 2.0])}, labels)
    assert_same(labels, ours.data.load_labels(path))


def test_files_of_other_kinds_are_refused(tmp_path):
    path = tmp_path / "graphs.bin"
    with pytest.raises(ours.DGLError, match="no file"):
        ours.load_graphs(str(path))
    torch.save([torch.ones(2)], path)
    with pytest.raises(ours.DGLError, match="no file that"):
        ours.load_graphs(str(path))


class Squares(ours.data.DGLDataset):
    """Graphs of 1, 2, ... nodes."""

    def __init__(self, folder, **options):
        self.processed = 0
        super().__init__("squares", raw_dir=str(folder), **options)

    def process(self):
        self.processed += 1
        self.graphs = [ours.rand_graph(n + 1, n) for n in range(10)]

    def _file(self):
        return f"{self.save_path}.bin"

    def save(self):
        ours.save_graphs(self._file(), self.graphs)

    def load(self):
        self.graphs, _ = ours.load_graphs(self._file())

    def has_cache(self):
        return os.path.exists(self._file())

    def __getitem__(self, i):
        return self.graphs[i], {"n": i, "name": f"g{i}", "pair": (torch.ones(2) * i, float(i))}

    def __len__(self):
        return len(self.graphs)


def test_datasets_and_loaders(tmp_path):
    dataset = Squares(tmp_path)
    cached = Squares(tmp_path)
    assert (dataset.processed, cached.processed, Squares(tmp_path, force_reload=True).processed) == (1, 0, 1)
    assert_same([g for g, _ in dataset], [g for g, _ in cached])
    parts = ours.data.split_dataset(dataset, [0.5, 0.2, 0.3], shuffle=True, random_state=0)
    assert [len(part) for part in parts] == [5, 2, 3]
    assert sorted(part[i][1]["n"] for part in parts for i in range(len(part))) == list(range(10))
    for graph, labels in ours.dataloading.GraphDataLoader(dataset, batch_size=5):
        assert graph.batch_num_nodes().tolist() == [n + 1 for n in labels["n"].tolist()]
        assert labels["name"] == [f"g{n}" for n in labels["n"].tolist()]
        assert labels["pair"][0].shape == (5, 2) and labels["pair"][1].dtype == torch.float64


def test_datasets_that_are_absent_say_so():
    with pytest.raises(ours.DGLError, match="TUDataset is not available"):
        ours.data.TUDataset("ENZYMES")


@pytest.fixture
def server(tmp_path):
    """The address of a server of the files in tmp_path."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_downloads(tmp_path, server):
    (tmp_path / "a.txt").write_text("abc")
    target = tmp_path / "b.txt"
    assert download(f"{server}/a.txt", str(target), log=False) == str(target)
    assert target.read_text() == "abc"
    with pytest.raises(ConnectionError, match="hash"):
        download(f"{server}/a.txt", str(target), sha1_hash="0", log=False)
    with pytest.raises(ConnectionError, match="put the file at"):
        download(f"{server}/none.txt", str(tmp_path / "c.txt"), log=False)
    assert not (tmp_path / "c.txt").exists()
