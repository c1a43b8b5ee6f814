"""Random clusters for property tests."""

from hypothesis import strategies as st

from plait.cluster import PRESETS, Cluster, Device, Host, Link

# Few distinct values, so that ties (where rules of choice differ) are common.
bandwidths = st.sampled_from([1e9, 2e9, 3.125e9, 12e9])
latencies = st.sampled_from([0.0, 1e-6, 5e-6, 20e-6])
kinds = st.sampled_from(list(PRESETS.values()))


@st.composite
def tiered_clusters(draw: st.DrawFn) -> Cluster:
    """Hosts of unequal sizes under racks under a spine, with some device-to-device links and cross links."""
    racks = tuple(f"rack{number}" for number in range(draw(st.integers(1, 3))))
    links = [Link(rack, "spine", draw(bandwidths), draw(latencies)) for rack in racks]
    hosts: list[Host] = []
    devices: list[Device] = []
    for number in range(draw(st.integers(1, 4))):
        host = Host(f"node{number}", draw(st.none() | st.integers(1, 4)))
        hosts.append(host)
        links.append(Link(host.name, draw(st.sampled_from(racks)), draw(bandwidths), draw(latencies)))
        tier = (draw(bandwidths), draw(latencies))
        for index in range(draw(st.integers(1, 3))):
            kind = draw(kinds)
            speed = draw(st.floats(0.1, 2))
            device = Device(f"{host.name}/gpu{index}", host.name, kind, draw(st.integers(1, 2**40)), speed)
            devices.append(device)
            links.append(Link(device.name, host.name, *tier))
    links += draw(_extra_links([device.name for device in devices]))
    links += draw(_extra_links([host.name for host in hosts]))
    return Cluster("random tiers", tuple(hosts), tuple(devices), (*racks, "spine"), tuple(links))


@st.composite
def graph_clusters(draw: st.DrawFn) -> Cluster:
    """A random tree of devices, hosts and switches with extra links: any may have to pass messages on."""
    num_devices = draw(st.integers(1, 6))
    hosts = (Host("host0"), Host("host1"))
    switches = ("switch0",)
    devices = tuple(
        Device(f"d{number}", draw(st.sampled_from(hosts)).name, PRESETS["v100"], 2**34) for number in range(num_devices)
    )
    names = draw(st.permutations([*(device.name for device in devices), "host0", "host1", "switch0"]))
    links = [
        Link(names[draw(st.integers(0, position - 1))], name, draw(bandwidths), draw(latencies))
        for position, name in enumerate(names)
        if position
    ]
    joined = {frozenset((link.a, link.b)) for link in links}
    extra = draw(_extra_links(list(names)))
    links += [link for link in extra if frozenset((link.a, link.b)) not in joined]
    return Cluster("random graph", hosts, devices, switches, tuple(links))


@st.composite
def _extra_links(draw: st.DrawFn, names: list[str]) -> list[Link]:
    pairs = [(a, b) for position, a in enumerate(names) for b in names[:position]]
    if not pairs:
        return []
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=4))
    return [Link(a, b, draw(bandwidths), draw(latencies)) for a, b in chosen]
