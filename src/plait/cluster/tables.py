"""The tables of a TOML cluster file, checked as far as one table can be by itself."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from plait.cluster.problems import UnknownKeyError
from plait.cluster.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds
from plait.errors import PlaitError


def _bandwidth(value: object, info: ValidationInfo) -> float:
    return parse_bandwidth(value, name=info.field_name or "bandwidth")


def _seconds(value: object, info: ValidationInfo) -> float:
    return parse_seconds(value, name=info.field_name or "latency")


def _bytes(value: object, info: ValidationInfo) -> int:
    return parse_bytes(value, name=info.field_name or "memory")


def _flops(value: object, info: ValidationInfo) -> float:
    return parse_flops(value, name=info.field_name or "flops")


def _two_ends(value: list[str]) -> list[str]:
    if len(value) != 2:
        raise PlaitError(
            f'names {len(value)} ends, and a link has two; write between = ["node0/gpu0", "node1/gpu0"], and '
            "one [[links]] per pair"
        )
    return value


Bandwidth = Annotated[float, BeforeValidator(_bandwidth)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Bytes = Annotated[int, BeforeValidator(_bytes)]
Flops = Annotated[float, BeforeValidator(_flops)]
Count = Annotated[int, Field(ge=1)]
Speed = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Table(BaseModel):
    """Strict about types (`count = "2"` is an error) and about keys."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, data: Any) -> Any:
        """What extra="forbid" does, but here the keys that would be right are at hand for the message."""
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise UnknownKeyError(key, list(cls.model_fields))
        return data


class InHostTable(Table):
    bandwidth: Bandwidth
    latency: Seconds


class UplinkTable(Table):
    to: str | None = None
    bandwidth: Bandwidth
    latency: Seconds


class DevicesTable(Table):
    """Some equal devices of a host."""

    kind: str
    count: Count = 1
    memory: Bytes | None = None
    speed: Speed = 1.0


class HostTable(Table):
    name: str
    count: Count = 1
    devices: list[DevicesTable] = []
    in_host: InHostTable | None = None
    uplink: UplinkTable | None = None
    compute_slots: Count | None = None


class AggregateTable(Table):
    """What is left out is as `plait switch` has it on a network with jumbo frames."""

    slots: Count = 64
    payload: Bytes = 8896
    efficiency: Annotated[float, Field(gt=0, le=1)] = 0.98


class SwitchTable(Table):
    name: str
    count: Count = 1
    uplink: UplinkTable | None = None
    aggregate: AggregateTable | None = None


class DeviceTable(Table):
    """One device of an explicit graph."""

    name: str
    kind: str
    host: str | None = None
    memory: Bytes | None = None
    speed: Speed = 1.0


class LinkTable(Table):
    between: Annotated[list[str], AfterValidator(_two_ends)]
    bandwidth: Bandwidth
    latency: Seconds


class KindTable(Table):
    """A device kind of the file's own; with `like`, what is left out is taken from that kind."""

    like: str | None = None
    flops: Flops | None = None
    memory: Bytes | None = None
    memory_bandwidth: Bandwidth | None = None
    efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    backend: Literal["cpu", "cuda"] | None = None
    precision: Literal["fp32", "tf32", "fp16", "bf16"] | None = None


class ClusterTables(Table):
    """A whole file."""

    name: str | None = None
    hosts: list[HostTable] = []
    devices: list[DeviceTable] = []
    switches: list[SwitchTable] = []
    links: list[LinkTable] = []
    kinds: dict[str, KindTable] = {}
