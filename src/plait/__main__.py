"""`python -m plait`, and what `torchrun -m plait` runs."""

from plait.cli import main

main()
