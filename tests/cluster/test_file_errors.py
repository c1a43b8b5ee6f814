"""Every mistake in a cluster file is answered with the value, the rule and the fix."""

import pytest

from plait.cluster import load_cluster, parse_cluster
from plait.errors import PlaitError

HOSTS = """
[[hosts]]
name = "node"
count = 2
devices = [{ kind = "v100", count = 2 }]
in_host = { bandwidth = "12 GB/s", latency = "5 us" }
uplink = { bandwidth = "25 Gbit/s", latency = "20 us" }
"""
LINK = '[[links]]\nbetween = ["node0/gpu0", "node1/gpu0"]\nbandwidth = "1 GB/s"\nlatency = "1 us"\n'
NO_UPLINK = HOSTS.replace('uplink = { bandwidth = "25 Gbit/s", latency = "20 us" }', "")
NO_TIER = HOSTS.replace('in_host = { bandwidth = "12 GB/s", latency = "5 us" }', "")
RACKS = '[[switches]]\nname = "rack"\ncount = 2\n'


def message_for(text):
    with pytest.raises(PlaitError) as caught:
        parse_cluster(text, source="lab.toml")
    message = str(caught.value)
    assert message.startswith("lab.toml")
    assert "\n" not in message
    return message


def changed(old, new, text=HOSTS):
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        pytest.param("", ["no devices", "devices = [{"], id="empty file"),
        pytest.param("a b", ["not valid TOML", "line 1"], id="not TOML"),
        pytest.param(
            changed('"25 Gbit/s"', "25"),
            ['hosts[0].uplink.bandwidth = 25 has no unit; write e.g. "25 Gbit/s"'],
            id="missing unit",
        ),
        pytest.param(
            HOSTS + RACKS + 'aggregate = { slots = 0, payload = "1 kB" }',
            ["switches[0].aggregate.slots = 0"],
            id="no slots",
        ),
        pytest.param(
            HOSTS + RACKS + "aggregate = { efficiency = 1.5 }",
            ["switches[0].aggregate.efficiency = 1.5"],
            id="efficiency",
        ),
        pytest.param(
            changed('"5 us"', "5"),
            ['hosts[0].in_host.latency = 5 has no unit; write e.g. "5 us"'],
            id="latency",
        ),
        pytest.param(
            changed("count = 2 }", 'count = 2, memory = "16" }'),
            ['hosts[0].devices[0].memory = "16" has no unit; write e.g. "16 GiB"'],
            id="memory without unit",
        ),
        pytest.param(
            changed("count = 2 }", 'count = 2, memory = "-1 GiB" }'),
            ['hosts[0].devices[0].memory = "-1 GiB" must be above 0'],
            id="negative memory",
        ),
        pytest.param(
            changed("12 GB/s", "0 GB/s"),
            ['hosts[0].in_host.bandwidth = "0 GB/s" must be above 0'],
            id="zero bandwidth",
        ),
        pytest.param(
            changed("25 Gbit/s", "-25 Gbit/s"),
            ['uplink.bandwidth = "-25 Gbit/s" must be above 0'],
            id="negative",
        ),
        pytest.param(
            changed("count = 2 }", "count = 2, speed = 0 }"),
            ["devices[0].speed = 0 must be greater than 0"],
            id="speed",
        ),
        pytest.param(
            changed("uplink", "uplnk"),
            ["hosts[0].uplnk is not a known key", 'Did you mean "uplink"?'],
            id="key",
        ),
        pytest.param(
            changed("uplink = { bandwidth", "uplink = { bandwith"),
            [
                "hosts[0].uplink.bandwith is not a known key",
                'Did you mean "bandwidth"?',
                "to, bandwidth, latency",
            ],
            id="nested key",
        ),
        pytest.param(
            "host = 1\n" + HOSTS,
            ["lab.toml: host is not a known key", 'Did you mean "hosts"?'],
            id="key of the file",
        ),
        pytest.param(
            changed("v100", "v10"),
            [
                'hosts[0].devices[0].kind = "v10" is not a known device kind',
                'Did you mean "v100"?',
                "a100",
                "[kinds.v10]",
            ],
            id="kind",
        ),
        pytest.param(
            HOSTS + '[kinds.x]\nlike = "v1000"\n',
            ['kinds.x.like = "v1000" is not a known device kind'],
            id="like",
        ),
        pytest.param(
            HOSTS + '[kinds.x]\nflops = "1 TFLOP/s"\n',
            ["kinds.x has no memory", 'like = "v100"'],
            id="half a kind",
        ),
        pytest.param(
            HOSTS + '[kinds.x]\nlike = "v100"\nefficiency = 1.5\n',
            ["kinds.x.efficiency = 1.5 must be"],
            id="share",
        ),
        pytest.param(
            HOSTS + '[kinds.x]\nlike = "v100"\nbackend = "rocm"\n',
            ["kinds.x.backend = \"rocm\" must be 'cpu' or 'cuda'"],
            id="backend",
        ),
        pytest.param(
            HOSTS + LINK.replace("node1/gpu0", "node1/gpu9"),
            ['ends at "node1/gpu9", which is no device, host or switch', 'Did you mean "node1/gpu'],
            id="endpoint",
        ),
        pytest.param(HOSTS + LINK.replace(', "node1/gpu0"', ""), ["links[0].between", "a link has two"], id="one end"),
        pytest.param(HOSTS + LINK.replace("node1/gpu0", "node0/gpu0"), ["joins a vertex to itself"], id="loop"),
        pytest.param(HOSTS + LINK + LINK, ["are linked twice", "total bandwidth"], id="two links"),
        pytest.param(
            changed("uplink = {", 'uplink = { to = "rakc",') + RACKS,
            [
                'hosts[0].uplink.to = "rakc" is not a switch of this file',
                'Did you mean "rack"?',
                "[[switches]]",
            ],
            id="switch",
        ),
        pytest.param(
            HOSTS + RACKS + '[[switches]]\nname = "spine"\n',
            ["hosts[0].uplink does not say which switch", "(rack, spine)", 'add e.g. to = "rack"'],
            id="which switch",
        ),
        pytest.param(HOSTS + RACKS + RACKS, ['two [[switches]] are named "rack"'], id="two switches of a name"),
        pytest.param(HOSTS + HOSTS, ['the name "node0" is given to a host and to another host'], id="two hosts"),
        pytest.param(
            HOSTS + '[[devices]]\nname = "node0/gpu0"\nkind = "v100"\n',
            ['the name "node0/gpu0" is given to a device and to another device'],
            id="two devices of a name",
        ),
        pytest.param(
            HOSTS + '[[devices]]\nname = "ndoe0/gpu7"\nkind = "v100"\n',
            ['devices[0] sits in host "ndoe0"', 'Did you mean "node0"?'],
            id="host of a device",
        ),
        pytest.param(
            NO_UPLINK,
            [
                '"node0/gpu0" and "node1/gpu0" cannot reach',
                'no link joins host "node0" to host "node1"',
                "uplink",
            ],
            id="no uplinks",
        ),
        pytest.param(
            NO_TIER,
            ['"node0/gpu0" and "node0/gpu1" cannot reach', 'give host "node0" an in_host'],
            id="no tier",
        ),
        pytest.param(HOSTS + RACKS, ['no link joins switch "rack0" to switch "rack1"', "[[links]]"], id="no spine"),
        pytest.param(
            '[[devices]]\nname = "a"\nkind = "t4"\n[[devices]]\nname = "b"\nkind = "t4"\n',
            ['no link joins device "a" to device "b"; add [[links]] with between = ["a", "b"]'],
            id="no links",
        ),
        pytest.param(
            changed("count = 2\n", "count = 0\n"),
            ["hosts[0].count = 0 must be at least 1"],
            id="count of hosts",
        ),
        pytest.param(
            changed("count = 2 }", "count = 0 }"),
            ["hosts[0].devices[0].count = 0 must be at least 1"],
            id="no devices",
        ),
        pytest.param(
            changed("count = 2\n", 'count = "2"\n'),
            ['hosts[0].count = "2" must be a whole number'],
            id="text count",
        ),
        pytest.param(changed('name = "node"\n', ""), ["hosts[0] has no name", 'name = "node"'], id="nameless"),
        pytest.param(
            changed(', latency = "20 us"', ""), ["hosts[0].uplink has no latency", '"20 us"'], id="no latency"
        ),
        pytest.param(changed("[[hosts]]", "[hosts]"), ["hosts must be a list; write [[hosts]]"], id="single brackets"),
        pytest.param(
            changed('in_host = { bandwidth = "12 GB/s", latency = "5 us" }', 'in_host = "12 GB/s"'),
            ['hosts[0].in_host = "12 GB/s" must be a table; write in_host = {'],
            id="not a table",
        ),
        pytest.param(changed('"node"', '"my node"'), ['the host name "my node0"', "one word"], id="space"),
        pytest.param(changed('"node"', "3"), ["hosts[0].name = 3 must be text in quotes"], id="number as name"),
    ],
)
def test_mistakes_in_a_file(text, messages):
    message = message_for(text)
    for part in messages:
        assert part in message


def test_several_mistakes_are_counted():
    text = changed('"25 Gbit/s"', "25", changed('"5 us"', "5"))
    assert message_for(text).endswith("(problem 1 of 2 in this file)")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere/lab.toml", 'cluster file "nowhere/lab.toml" was not found'),
        ("eight-gpus", 'cluster "eight-gpus" is neither a file nor local:N; write the path of a TOML file'),
        ("lcal:4", "neither a file nor local:N"),
    ],
)
def test_a_spec_that_names_nothing(spec, message):
    with pytest.raises(PlaitError) as caught:
        load_cluster(spec)
    assert message in str(caught.value)


def test_a_missing_file_is_answered_with_the_one_that_was_meant(tmp_path):
    (tmp_path / "two-hosts.toml").write_text(HOSTS)
    with pytest.raises(PlaitError, match=r'Did you mean ".*two-hosts\.toml"\?'):
        load_cluster(str(tmp_path / "two-host.toml"))


def test_a_directory_is_not_a_file(tmp_path):
    with pytest.raises(PlaitError, match="is a directory"):
        load_cluster(str(tmp_path))


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlaitError, match="not UTF-8"):
        load_cluster(str(path))
