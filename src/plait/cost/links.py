"""Times of transfers and collectives, from latency and bandwidth (algorithms.md, section 5)."""


def transfer_seconds(num_bytes: float, bandwidth: float, latency: float) -> float:
    """alpha + bytes / bandwidth."""
    return latency + num_bytes / bandwidth


def ring_all_reduce_seconds(num_bytes: float, members: int, bandwidth: float, latency: float) -> float:
    """2(n-1)/n S/B + 2(n-1) alpha.

    >>> ring_all_reduce_seconds(4e9, 4, 1e9, 0.0)
    6.0
    >>> ring_all_reduce_seconds(4e9, 1, 1e9, 0.0)
    0.0
    """
    if members < 2:
        return 0.0
    return 2 * (members - 1) / members * num_bytes / bandwidth + 2 * (members - 1) * latency
