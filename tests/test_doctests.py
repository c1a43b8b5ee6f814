"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import plait

MODULES = [
    module.name for module in pkgutil.walk_packages(plait.__path__, "plait.") if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_some_docstrings_have_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) >= 10
