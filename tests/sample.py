"""A plugin of pytest that runs a sample of the cases: pytest -p tests.sample. `make test` samples the tests of many cases."""

import itertools
from collections import defaultdict

import pytest


def _parameters(item):
    return {(name, repr(value)) for name, value in item.callspec.params.items()} if hasattr(item, "callspec") else set()


def sample(items, most=1):
    """Of each test with more cases than `most` the fewest, about, that still have every value of every parameter."""
    tests = defaultdict(list)
    for item in items:
        tests[item.path, item.originalname].append(item)
    kept = []
    for cases in tests.values():
        if len(cases) <= most:
            kept.extend(cases)
            continue
        kept.append(cases[0])
        parameters = {case: _parameters(case) for case in cases}
        missing = set(itertools.chain.from_iterable(parameters.values())) - parameters[cases[0]]
        while missing:
            best = max(cases, key=lambda case: len(parameters[case] & missing))
            missing -= parameters[best]
            kept.append(best)
    return kept


def keep(config, items, kept):
    """Deselects the others."""
    kept = list(kept)
    left_out = set(items) - set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = kept


@pytest.hookimpl(trylast=True)  # what -k leaves out cannot stand for other cases
def pytest_collection_modifyitems(config, items):
    keep(config, items, sample(items))
