"""With this folder on PYTHONPATH, Python finds none of the packages that HALFGNN_HIDDEN names: an environment without them."""

import os
import sys


class _Hidden:
    names = frozenset(filter(None, os.environ.get("HALFGNN_HIDDEN", "").split(",")))

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, _Hidden())
