"""The aggregating switch: sums packets of many workers as they pass. See docs/switch.md."""
