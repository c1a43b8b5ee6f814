"""The device kinds a cluster file can use: the presets and its own `[kinds.NAME]` tables."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plait.cluster.parts import DeviceKind
from plait.cluster.presets import PRESETS, TENSOR_CORE_EFFICIENCY, VECTOR_EFFICIENCY
from plait.cluster.suggestions import did_you_mean, listed
from plait.cluster.tables import KindTable
from plait.errors import PlaitError


def known_kinds(tables: Mapping[str, KindTable]) -> dict[str, DeviceKind]:
    """Presets plus the file's kinds, which come first where a name is in both.

    A kind can be `like` a preset or a kind further up in the file; so no kind can be like itself, except to
    change a preset in place.
    """
    kinds = dict(PRESETS)
    for name, table in tables.items():
        kinds[name] = _own_kind(name, table, kinds)
    return kinds


def find_kind(name: str, kinds: Mapping[str, DeviceKind], *, where: str) -> DeviceKind:
    """The kind of that name, in any case of letters; `where` is the TOML path it is asked for at."""
    found = kinds.get(name) or kinds.get(name.lower())
    if found is None:
        raise PlaitError(
            f'{where} = "{name}" is not a known device kind. {did_you_mean(name, kinds)}Use one of '
            f"{listed(kinds)}, or describe it in [kinds.{name}]"
        )
    return found


def _own_kind(name: str, table: KindTable, kinds: Mapping[str, DeviceKind]) -> DeviceKind:
    own = {field: value for field, value in _fields_given(table).items() if value is not None}
    if table.like is not None:
        return replace(find_kind(table.like, kinds, where=f"kinds.{name}.like"), name=name, **own)
    for key in ("flops", "memory", "memory_bandwidth"):
        if getattr(table, key) is None:
            raise PlaitError(
                f"kinds.{name} has no {key}, and nothing to take it from; give it flops, memory and "
                'memory_bandwidth, or like = "v100" and only what differs'
            )
    backend = table.backend or "cuda"
    precision = table.precision or ("fp32" if backend == "cpu" else "fp16")
    efficiency = VECTOR_EFFICIENCY if precision == "fp32" else TENSOR_CORE_EFFICIENCY
    usual: dict[str, Any] = {"backend": backend, "precision": precision, "efficiency": efficiency}
    return DeviceKind(name=name, **(usual | own))


def _fields_given(table: KindTable) -> dict[str, Any]:
    return {
        "flops_per_second": table.flops,
        "memory_bandwidth": table.memory_bandwidth,
        "memory_bytes": table.memory,
        "efficiency": table.efficiency,
        "backend": table.backend,
        "precision": table.precision,
    }
