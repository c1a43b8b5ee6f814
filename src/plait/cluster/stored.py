"""The JSON form of a cluster, as it stands inside plans and reports. Device kinds are written once."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from plait.cluster.parts import Aggregator, Device, DeviceKind, Host, Link
from plait.cluster.problems import describe
from plait.errors import PlaitError

VERSION = 1


class StoredDevice(BaseModel):
    """A device with its kind by name."""

    model_config = ConfigDict(extra="forbid")

    name: str
    host: str
    kind: str
    memory_bytes: int
    speed: float


class StoredCluster(BaseModel):
    """Version 1."""

    model_config = ConfigDict(extra="forbid")

    version: int
    name: str
    kinds: list[DeviceKind]
    hosts: list[Host]
    devices: list[StoredDevice]
    switches: list[str]
    links: list[Link]
    aggregators: list[Aggregator] = []

    def full_devices(self) -> tuple[Device, ...]:
        """The devices with their kinds looked up."""
        kinds = {kind.name: kind for kind in self.kinds}
        for device in self.devices:
            if device.kind not in kinds:
                raise PlaitError(
                    f'device "{device.name}" has the kind "{device.kind}", which this stored cluster does '
                    "not hold; it was changed by hand or cut short: write it again from the cluster file"
                )
        return tuple(
            Device(device.name, device.host, kinds[device.kind], device.memory_bytes, device.speed)
            for device in self.devices
        )


def read_stored(data: Mapping[str, Any]) -> StoredCluster:
    """Validate the JSON form."""
    version = data.get("version")
    if version != VERSION:
        raise PlaitError(
            f"the stored cluster has version {version!r} and this Plait reads version {VERSION}; write it "
            "again with this Plait, or use the Plait that wrote it"
        )
    try:
        return StoredCluster.model_validate(data)
    except ValidationError as error:
        raise PlaitError(f"the stored cluster cannot be read: {describe(error)}") from None


def as_stored(
    name: str,
    hosts: tuple[Host, ...],
    devices: tuple[Device, ...],
    switches: tuple[str, ...],
    links: tuple[Link, ...],
    aggregators: tuple[Aggregator, ...],
) -> dict[str, Any]:
    """The JSON form.

    Numbers are made floats where they are meant as such: 1 and 1.0 are equal but are not written alike, and
    equal clusters must be written alike.
    """
    kinds = {device.kind.name: device.kind for device in devices}
    # Clusters without any are written as before there were some, and keep their fingerprints.
    summing = [{**asdict(found), "efficiency": float(found.efficiency)} for found in aggregators]
    return {
        "version": VERSION,
        "name": name,
        "kinds": [
            {
                **asdict(kind),
                "flops_per_second": float(kind.flops_per_second),
                "memory_bandwidth": float(kind.memory_bandwidth),
                "efficiency": float(kind.efficiency),
            }
            for kind in kinds.values()
        ],
        "hosts": [asdict(host) for host in hosts],
        "devices": [
            {
                "name": device.name,
                "host": device.host,
                "kind": device.kind.name,
                "memory_bytes": device.memory_bytes,
                "speed": float(device.speed),
            }
            for device in devices
        ],
        "switches": list(switches),
        "links": [
            {"a": link.a, "b": link.b, "bandwidth": float(link.bandwidth), "latency": float(link.latency)}
            for link in links
        ],
        **({"aggregators": summing} if summing else {}),
    }
