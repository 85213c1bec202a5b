"""Parts of data sets, downloads and files."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import shutil
import ssl
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base import DGLError, dgl_warning
from .serialize import load_graphs, load_labels, load_tensors, save_graphs, save_tensors

__all__ = [
    "Subset",
    "add_nodepred_split",
    "check_sha1",
    "download",
    "extract_archive",
    "generate_mask_tensor",
    "get_download_dir",
    "idx2mask",
    "load_graphs",
    "load_info",
    "load_labels",
    "load_tensors",
    "loadtxt",
    "makedirs",
    "save_graphs",
    "save_info",
    "save_tensors",
    "split_dataset",
]

# ---- parts -----------------------------------------------------------------------------------------------------------------------


class Subset:
    """Some items of a data set. indices: their places in it."""

    def __init__(self, dataset: Any, indices: Any):
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, item: int) -> Any:
        return self.dataset[self.indices[item]]

    def __len__(self) -> int:
        return len(self.indices)


def split_dataset(
    dataset: Any, frac_list: Sequence[float] | None = None, shuffle: bool = False, random_state: Any = None
) -> list[Subset]:
    """Split a data set into parts.

    Args:
        frac_list: the parts' fractions, by default 0.8, 0.1 and 0.1. The last part gets what rounding leaves.
        shuffle: take items at random; otherwise in their order.
        random_state: seed of that.
    """
    fractions = np.asarray([0.8, 0.1, 0.1] if frac_list is None else frac_list)
    if not np.allclose(fractions.sum(), 1.0):
        raise DGLError(f"frac_list adds up to {fractions.sum():.4f}; expected 1")
    count = len(dataset)
    lengths = (count * fractions).astype(int)
    lengths[-1] = count - lengths[:-1].sum()
    order = np.random.RandomState(random_state).permutation(count) if shuffle else np.arange(count)
    return [Subset(dataset, order[end - length : end]) for end, length in zip(accumulate(lengths), lengths)]


def add_nodepred_split(dataset: Any, ratio: tuple[float, float, float], ntype: str | None = None) -> None:
    """Give the nodes of each graph the features train_mask, val_mask and test_mask, at random in this ratio."""
    if len(ratio) != 3:
        raise ValueError(f"ratio is {ratio}; expected three fractions, for training, validation and test")
    for i in range(len(dataset)):
        graph = dataset[i]
        count = graph.num_nodes(ntype)
        order = np.random.permutation(count)
        bounds = np.cumsum([int(count * part) for part in ratio[:2]])
        for name, nodes in zip(("train_mask", "val_mask", "test_mask"), np.split(order, bounds)):
            graph.nodes[ntype].data[name] = generate_mask_tensor(idx2mask(nodes, count)).to(graph.device)


def idx2mask(idx: Any, len: int) -> np.ndarray:
    """An array (len,) with 1 at these places and 0 elsewhere."""
    mask = np.zeros(len)
    mask[idx] = 1
    return mask


def generate_mask_tensor(mask: np.ndarray) -> Tensor:
    """A tensor of booleans."""
    return torch.from_numpy(np.asarray(mask).astype(bool))


# ---- downloads -------------------------------------------------------------------------------------------------------------------


def get_download_dir() -> str:
    """The folder for data sets: the environment variable DGL_DOWNLOAD_DIR, or ~/.dgl. It is made."""
    path = os.environ.get("DGL_DOWNLOAD_DIR", os.path.join(os.path.expanduser("~"), ".dgl"))
    os.makedirs(path, exist_ok=True)
    return path


def _get_dgl_url(file_url: str) -> str:
    """The address of a file of DGL's: below the environment variable DGL_REPO, or https://data.dgl.ai/."""
    return os.environ.get("DGL_REPO", "https://data.dgl.ai/").rstrip("/") + "/" + file_url


def download(
    url: str,
    path: str | None = None,
    overwrite: bool = True,
    sha1_hash: str | None = None,
    retries: int = 5,
    verify_ssl: bool = True,
    log: bool = True,
) -> str:
    """Fetch a file.

    Args:
        path: of the file to write, or a folder; by default the current folder, under the name that the url ends with.
        overwrite: fetch it also if it is there.
        sha1_hash: the hash that it must have.
        retries: how often to try again.
        verify_ssl: False accepts any certificate.
        log: say what is done.

    Returns:
        The path of the file.

    Raises:
        ConnectionError: it cannot be fetched, or has another hash.
    """
    target = os.path.expanduser(path or url.split("/")[-1])
    if os.path.isdir(target):
        target = os.path.join(target, url.split("/")[-1])
    if not overwrite and os.path.exists(target) and (not sha1_hash or check_sha1(target, sha1_hash)):
        return target
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    if not verify_ssl:
        dgl_warning("verify_ssl is False: the certificate of the server is not verified")
    context = None if verify_ssl else ssl._create_unverified_context()
    for attempt in range(max(retries, 0) + 1):
        if log:
            print(f"Downloading {target} from {url}...")
        try:
            _fetch(url, target, context)
            break
        except (OSError, urllib.error.URLError) as error:
            is_final = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if is_final or attempt == max(retries, 0):
                raise ConnectionError(
                    f"{url} cannot be fetched ({error}). Without a connection to it, put the file at {os.path.abspath(target)}"
                ) from error
    if sha1_hash and not check_sha1(target, sha1_hash):
        raise ConnectionError(
            f"{target}, fetched from {url}, has another hash than {sha1_hash}; the file is incomplete or has changed"
        )
    return target


def _fetch(url: str, target: str, context: Any) -> None:
    """Write the file under another name first, so that there is none under its name unless it is complete."""
    part = f"{target}.part"
    with urllib.request.urlopen(url, context=context, timeout=60) as response, open(part, "wb") as file:
        shutil.copyfileobj(response, file)
    os.replace(part, target)


def check_sha1(filename: str, sha1_hash: str) -> bool:
    """Whether the file has this SHA-1 hash."""
    digest = hashlib.sha1()
    with open(filename, "rb") as file:
        for part in iter(lambda: file.read(1 << 20), b""):
            digest.update(part)
    return digest.hexdigest() == sha1_hash


def extract_archive(file: str, target_dir: str, overwrite: bool = True) -> None:
    """Unpack a .zip, .tar, .tar.gz, .tgz or .gz file into a folder. overwrite: also if the folder exists.

    Raises:
        DGLError: another ending. An archive that names files outside the folder is refused.
    """
    if os.path.exists(target_dir) and not overwrite:
        return
    print(f"Extracting file to {target_dir}")
    os.makedirs(target_dir, exist_ok=True)
    if file.endswith((".tar.gz", ".tar", ".tgz")):
        with tarfile.open(file) as archive:
            archive.extractall(target_dir, filter="data")
    elif file.endswith(".gz"):
        target = os.path.join(target_dir, os.path.basename(file)[:-3])
        with gzip.open(file, "rb") as packed, open(target, "wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    elif file.endswith(".zip"):
        with zipfile.ZipFile(file) as zipped:
            zipped.extractall(target_dir)
    else:
        raise DGLError(f"file is {file!r}; expected a name that ends in .zip, .tar, .tar.gz, .tgz or .gz")


# ---- files -----------------------------------------------------------------------------------------------------------------------


def makedirs(path: str) -> None:
    """Make a folder and those above it."""
    os.makedirs(os.path.expanduser(os.path.normpath(path)), exist_ok=True)


def save_info(path: str, info: dict) -> None:
    """Write a dict to a file by pickle."""
    with open(path, "wb") as file:
        pickle.dump(info, file)


def load_info(path: str) -> dict:
    """The dict that :func:`save_info` has written. Unpickling runs code of the file: load only files that you trust."""
    with open(path, "rb") as file:
        return pickle.load(file)


def loadtxt(path: str, delimiter: str, dtype: Any = None) -> np.ndarray:
    """Numbers of a text file, by pandas if it is installed."""
    try:
        import pandas
    except ImportError:
        return np.loadtxt(path, delimiter=delimiter)
    return pandas.read_csv(path, delimiter=delimiter, header=None).values
