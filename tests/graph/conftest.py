"""What the tests of capture and cutting share."""

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items):
    """PyTorch warns that its own recurrent layers keep a list of their weights."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:The tensor attributes"))


@pytest.fixture(autouse=True)
def same_weights_and_batches():
    torch.manual_seed(0)
