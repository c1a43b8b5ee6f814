"""From a model to one fx graph of its loss: torch.export, and what it takes for any model to go through it.

`model.py` is the way through. Beside it: which paths a model with branches is captured on (`decisions`, `paths`,
`branches`), what stays in one piece (`observe`, `opaque`), what a capture would silently get wrong (`watch`), and where
PyTorch is helped along (`hidden_shapes`, `lengths`, `remembered`). What comes out has one size, `rows` (`sizes`).
"""

from plait.graph.capture.model import Captured, Loss, batch_rows, call_model, capture, loss_in

__all__ = ["Captured", "Loss", "batch_rows", "call_model", "capture", "loss_in"]
