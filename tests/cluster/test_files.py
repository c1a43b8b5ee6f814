"""Cluster files: what the tables become, and the examples in the repository and in the documentation."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from plait.cluster import PRESETS, Aggregator, Cluster, load_cluster, parse_cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "clusters").glob("*.toml"))
DOCUMENT = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
DOCUMENTED = re.findall(r"^```toml\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


def parsed(text):
    return parse_cluster(text, source="test")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_loads(path):
    cluster = load_cluster(str(path))
    assert cluster.bandwidth(0, len(cluster.devices) - 1) > 0


@pytest.mark.parametrize("text", DOCUMENTED)
def test_every_documented_file_loads(text):
    assert parsed(text).devices


def test_switches_that_sum_packets_are_kept_in_plans():
    cluster = parsed(next(text for text in DOCUMENTED if "aggregate" in text))
    assert cluster.aggregators == (Aggregator("switch", 64, 8896, 0.98),)
    assert Cluster.from_dict(cluster.to_dict()) == cluster
    without = replace(cluster, aggregators=())
    assert "aggregators" not in without.to_dict()  # as clusters were written before there were any
    assert without.fingerprint() != cluster.fingerprint()


def test_the_documentation_and_the_examples_were_found():
    assert len(DOCUMENTED) >= 5
    assert len(EXAMPLES) >= 5


def test_the_documented_presets_are_the_presets():
    rows = re.findall(r"^\| `(\S+)`(?: \(one core\))? \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", DOCUMENT, re.MULTILINE)
    written = {
        name: (float(teraflops) * 1e12, precision, float(rate) * 1e9, int(memory) * 2**30)
        for name, teraflops, precision, rate, memory in rows
    }
    assert written == {
        name: (
            pytest.approx(kind.flops_per_second),
            kind.precision,
            pytest.approx(kind.memory_bandwidth),
            kind.memory_bytes,
        )
        for name, kind in PRESETS.items()
    }


def test_the_python_example_of_the_documentation_holds():
    cluster = load_cluster(str(ROOT / "examples" / "clusters" / "two-hosts.toml"))
    assert cluster.bandwidth(cluster.vertex("node0/gpu0"), cluster.vertex("node1/gpu3")) == 3.125e9


def test_a_count_of_hosts_is_spelt_out():
    cluster = parsed(DOCUMENTED[0])
    assert cluster.name == "two hosts of four"
    assert [host.name for host in cluster.hosts] == ["node0", "node1"]
    assert [device.name for device in cluster.devices][3:5] == ["node0/gpu3", "node1/gpu0"]
    assert cluster.switches == ("switch",)
    assert len(cluster.links) == 8 + 2


def test_hosts_are_dealt_to_racks_in_blocks():
    cluster = parsed(DOCUMENTED[1])
    uplinks = {link.a: link.b for link in cluster.links if "/" not in link.a}
    assert [uplinks[f"node{number}"] for number in range(8)] == ["rack0"] * 4 + ["rack1"] * 4
    assert uplinks["rack1"] == "spine"


def test_one_host_of_a_group_keeps_its_name_and_files_without_a_name_take_the_file_s(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text('[[hosts]]\nname = "node"\ndevices = [{ kind = "V100" }]\n')
    cluster = load_cluster(str(path))
    assert cluster.name == "lab"
    assert cluster.devices[0].name == "node/gpu0"
    assert cluster.devices[0].kind == PRESETS["v100"]


def test_device_options():
    cluster = parsed(
        """
        [[hosts]]
        name = "node"
        compute_slots = 2
        devices = [{ kind = "v100", memory = "15 GiB", speed = 0.9 }, { kind = "1080ti" }, { kind = "cpu" }]
        in_host = { bandwidth = "12 GB/s", latency = 0 }
        """
    )
    first, second, third = cluster.devices
    assert (first.memory_bytes, first.speed) == (15 * 2**30, 0.9)
    assert (second.name, second.memory_bytes) == ("node/gpu1", 11 * 2**30)
    assert third.name == "node/cpu0"
    assert cluster.hosts[0].compute_slots == 2


def test_own_kinds_inherit_and_replace():
    cluster = parsed(
        """
        kinds.base = { flops = "30 TFLOP/s", memory = "24 GiB", memory_bandwidth = "900 GB/s" }
        kinds.half = { like = "base", flops = "15 TFLOP/s", efficiency = 0.3 }
        kinds.v100 = { like = "v100", efficiency = 0.5 }
        [[hosts]]
        name = "node"
        devices = [{ kind = "base" }, { kind = "half" }, { kind = "v100" }]
        in_host = { bandwidth = "12 GB/s", latency = "5 us" }
        """
    )
    base, half, v100 = (device.kind for device in cluster.devices)
    assert (base.efficiency, base.backend, base.precision) == (0.45, "cuda", "fp16")
    assert (half.name, half.flops_per_second, half.memory_bytes) == ("half", 15e12, 24 * 2**30)
    assert (v100.efficiency, v100.flops_per_second) == (0.5, 125e12)


def test_an_explicit_device_joins_its_host_s_tier():
    cluster = parsed(
        """
        [[hosts]]
        name = "node"
        devices = [{ kind = "v100" }]
        in_host = { bandwidth = "12 GB/s", latency = "5 us" }
        [[devices]]
        name = "node/extra"
        kind = "t4"
        """
    )
    assert cluster.devices_of("node") == (0, 1)
    assert cluster.bandwidth(0, 1) == 12e9


def test_a_device_without_a_host_gets_one_of_its_own():
    cluster = parsed('[[devices]]\nname = "a"\nkind = "t4"\n')
    assert [host.name for host in cluster.hosts] == ["a-host"]


def test_the_only_switch_need_not_be_named():
    cluster = parsed(
        """
        [[hosts]]
        name = "node"
        count = 2
        devices = [{ kind = "v100" }]
        in_host = { bandwidth = "12 GB/s", latency = "5 us" }
        uplink = { bandwidth = "25 Gbit/s", latency = "20 us" }
        [[switches]]
        name = "tor"
        """
    )
    assert cluster.switches == ("tor",)
    assert cluster.links[1].b == "tor"
