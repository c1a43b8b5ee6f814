"""What the tests of jobs share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Small models gain nothing from threads, and on busy cores lose minutes to them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
