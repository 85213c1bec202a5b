"""DGLDataset: what programs derive their data sets from."""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Callable
from typing import Any

from .utils import download, extract_archive, get_download_dir

__all__ = ["DGLBuiltinDataset", "DGLDataset"]


class DGLDataset:
    """A data set that is loaded from its cache, or downloaded, processed and saved there when it is constructed.

    Subclasses define :meth:`process`, ``__getitem__`` and ``__len__``, and as they need :meth:`has_cache`, :meth:`load`,
    :meth:`save` and :meth:`download`.

    Args:
        name: of the data set and its folder.
        url: what :meth:`download` fetches.
        raw_dir, save_dir: folders for what was downloaded and for the cache; by default :func:`get_download_dir`.
        hash_key: values that distinguish caches, of which :attr:`hash` is made.
        force_reload: do not use the cache.
        verbose: say what is done.
        transform: what subclasses apply to each graph.
    """

    def __init__(
        self,
        name: str,
        url: str | None = None,
        raw_dir: str | None = None,
        save_dir: str | None = None,
        hash_key: tuple = (),
        force_reload: bool = False,
        verbose: bool = False,
        transform: Callable[[Any], Any] | None = None,
    ):
        self._name = name
        self._url = url
        self._force_reload = force_reload
        self._verbose = verbose
        self._hash_key = hash_key
        self._hash = self._get_hash()
        self._transform = transform
        self._raw_dir = get_download_dir() if raw_dir is None else raw_dir
        self._save_dir = self._raw_dir if save_dir is None else save_dir
        self._load()

    # ---- what subclasses define --------------------------------------------------------------------------------------------------

    def download(self) -> None:
        """Fetch the raw data into :attr:`raw_path`."""

    def save(self) -> None:
        """Write the processed data to :attr:`save_path`."""

    def load(self) -> None:
        """Read what :meth:`save` has written."""

    def process(self) -> None:
        """Make the graphs."""
        raise NotImplementedError

    def has_cache(self) -> bool:
        """Whether :meth:`load` can be used."""
        return False

    def __getitem__(self, idx: int) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    # ---- what they inherit -------------------------------------------------------------------------------------------------------

    def _download(self) -> None:
        if not os.path.exists(self.raw_path):
            os.makedirs(self.raw_dir, exist_ok=True)
            self.download()

    def _load(self) -> None:
        if not self._force_reload and self.has_cache() and self._loads():
            return
        self._download()
        self.process()
        self.save()
        if self.verbose:
            print("Done saving data into cached files.")

    def _loads(self) -> bool:
        """Load the cache. False if that fails, for then the data is processed again."""
        try:
            self.load()
        except Exception:
            if self.verbose:
                print(traceback.format_exc())
                print("Loading from cache failed, re-processing.")
            return False
        if self.verbose:
            print("Done loading data from cached files.")
        return True

    def _get_hash(self) -> str:
        return hashlib.sha1(str(self._hash_key).encode()).hexdigest()[:8]

    def _get_hash_url_suffix(self) -> str:
        return "" if self._url is None else "_" + hashlib.sha1(str(self._url).encode()).hexdigest()[:8]

    @property
    def url(self) -> str | None:
        """What :meth:`download` fetches."""
        return self._url

    @property
    def name(self) -> str:
        """Of the data set."""
        return self._name

    @property
    def raw_dir(self) -> str:
        """The folder with raw data of all data sets."""
        return self._raw_dir

    @property
    def raw_path(self) -> str:
        """The folder with raw data of this one."""
        return os.path.join(self.raw_dir, self.name + self._get_hash_url_suffix())

    @property
    def save_dir(self) -> str:
        """The folder with caches of all data sets."""
        return self._save_dir

    @property
    def save_path(self) -> str:
        """The folder with the cache of this one."""
        return os.path.join(self.save_dir, self.name + self._get_hash_url_suffix())

    @property
    def verbose(self) -> bool:
        """Whether to say what is done."""
        return self._verbose

    @property
    def hash(self) -> str:
        """Eight digits that stand for `hash_key`."""
        return self._hash

    def __repr__(self) -> str:
        return f'Dataset("{self.name}", num_graphs={len(self)}, save_path={self.save_path})'


class DGLBuiltinDataset(DGLDataset):
    """A data set whose `url` is a zip file."""

    def __init__(
        self,
        name: str,
        url: str | None,
        raw_dir: str | None = None,
        hash_key: tuple = (),
        force_reload: bool = False,
        verbose: bool = False,
        transform: Callable[[Any], Any] | None = None,
    ):
        super().__init__(name, url, raw_dir, None, hash_key, force_reload, verbose, transform)

    def download(self) -> None:
        """Fetch the zip file and unpack it."""
        if self.url is not None:
            path = download(self.url, path=os.path.join(self.raw_dir, self.name + ".zip"))
            extract_archive(path, self.raw_path)
