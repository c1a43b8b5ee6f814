"""Plait plans the fastest synchronous way to train a PyTorch model on given machines, and runs it."""
