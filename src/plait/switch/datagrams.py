"""The UDP sockets of workers and switches: large buffers, and what a packet may hold on the way to an address."""

import contextlib
import socket

HEADER = 40  # sizeof(struct plait_header)
IP_AND_UDP = 28
LARGEST_FRAME = 9000
MOST_SLOTS = 1 << 14
_BUFFER = 16 << 20
_IP_MTU = 14
_UNDER_WAY = 576_000
_LINE = 16  # integers in a cache line


def make_socket(host: str, port: int = 0) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for forced, option in ((33, socket.SO_RCVBUF), (32, socket.SO_SNDBUF)):
        made.setsockopt(socket.SOL_SOCKET, option, _BUFFER)  # as far as net.core.rmem_max and wmem_max allow
        with contextlib.suppress(PermissionError):
            made.setsockopt(socket.SOL_SOCKET, forced, _BUFFER)  # root may have more
    made.bind((host, port))
    return made


def elements_for(mtu: int) -> int:
    """How many 32-bit integers a packet holds, in whole cache lines.

    >>> elements_for(9000), elements_for(1500), elements_for(65536)
    (2224, 352, 2224)
    """
    return (min(mtu, LARGEST_FRAME) - IP_AND_UDP - HEADER) // 4 // _LINE * _LINE


def usual_slots(elements: int) -> int:
    """Packets that a worker has under way: half a megabyte, which at 1 Gbit/s outlasts what a scheduler takes to wake a
    process, as far as the opening has room for their exponents.

    >>> usual_slots(2224), usual_slots(352)
    (64, 176)
    """
    return max(1, min(_UNDER_WAY // (4 * elements + HEADER + IP_AND_UDP), elements // 2))


def path_mtu(connected: socket.socket) -> int:
    return connected.getsockopt(socket.IPPROTO_IP, _IP_MTU)


def packets_that_fit(made: socket.socket, elements: int) -> int:
    """How many packets the socket's receive buffer holds; the kernel rounds each up to a power of two and adds its own
    book-keeping."""
    frame = elements * 4 + HEADER + IP_AND_UDP + 512
    taken = 1 << (frame - 1).bit_length()
    return made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // (taken + 512)
