"""The time on a device: a GPU is asked to finish first."""

import time

import torch


def now(device: torch.device | str) -> float:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
