"""What all tests share."""

import torch

# Small models gain nothing from threads, and on busy cores lose minutes to them.
torch.set_num_threads(1)
