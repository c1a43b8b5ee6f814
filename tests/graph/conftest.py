"""What the tests of capture and cutting share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_and_seed():
    """Small models gain nothing from threads; weights and batches are the same in every run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)
