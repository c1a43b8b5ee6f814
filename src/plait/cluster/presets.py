"""Device kinds people have, with the peak numbers their makers publish.

Peaks are dense (data sheets often print twice that, with 2:4 sparsity) and for the precision a
mixed-precision training run would use: tensor-core fp16 or bf16 *accumulating in fp32* where there are
tensor cores, fp32 otherwise. GeForce cards run fp32 accumulation at half rate; the lower figure is here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from plait.cluster.parts import DeviceKind

# Share of peak that real layers reach until `plait profile` measures it. Tensor cores wait for memory in
# all but the fattest matrix products; plain fp32 units are slow enough to be kept busier.
TENSOR_CORE_EFFICIENCY = 0.45
VECTOR_EFFICIENCY = 0.6


def _card(
    name: str,
    *,
    teraflops: float,
    precision: Literal["fp32", "fp16", "bf16"],
    gigabytes_per_second: float,
    memory_gibibytes: int,
) -> DeviceKind:
    return DeviceKind(
        name=name,
        flops_per_second=teraflops * 1e12,
        memory_bandwidth=gigabytes_per_second * 1e9,
        # A card sold as "16 GB" carries 16 GiB. The driver's own share is a cost of running, not a property.
        memory_bytes=memory_gibibytes * 2**30,
        efficiency=VECTOR_EFFICIENCY if precision == "fp32" else TENSOR_CORE_EFFICIENCY,
        backend="cuda",
        precision=precision,
    )


_CARDS = (
    # No tensor cores: fp32 on the ordinary units.
    _card("1080ti", teraflops=11.3, precision="fp32", gigabytes_per_second=484, memory_gibibytes=11),
    _card("p100", teraflops=10.6, precision="fp32", gigabytes_per_second=732, memory_gibibytes=16),
    # Volta and Turing: fp16 tensor cores, no bf16.
    _card("v100", teraflops=125, precision="fp16", gigabytes_per_second=900, memory_gibibytes=16),
    _card("v100-32gb", teraflops=125, precision="fp16", gigabytes_per_second=900, memory_gibibytes=32),
    _card("t4", teraflops=65, precision="fp16", gigabytes_per_second=320, memory_gibibytes=16),
    _card("2080ti", teraflops=53.8, precision="fp16", gigabytes_per_second=616, memory_gibibytes=11),
    # Ampere, Ada, Hopper: bf16 tensor cores. SXM variants where there are several.
    _card("a100", teraflops=312, precision="bf16", gigabytes_per_second=2039, memory_gibibytes=80),
    _card("a100-40gb", teraflops=312, precision="bf16", gigabytes_per_second=1555, memory_gibibytes=40),
    _card("a10", teraflops=125, precision="bf16", gigabytes_per_second=600, memory_gibibytes=24),
    _card("a40", teraflops=149.7, precision="bf16", gigabytes_per_second=696, memory_gibibytes=48),
    _card("3090", teraflops=71, precision="bf16", gigabytes_per_second=936, memory_gibibytes=24),
    _card("4090", teraflops=165.2, precision="bf16", gigabytes_per_second=1008, memory_gibibytes=24),
    _card("l4", teraflops=121, precision="bf16", gigabytes_per_second=300, memory_gibibytes=24),
    _card("l40s", teraflops=362, precision="bf16", gigabytes_per_second=864, memory_gibibytes=48),
    _card("h100", teraflops=989, precision="bf16", gigabytes_per_second=3350, memory_gibibytes=80),
    _card("h200", teraflops=989, precision="bf16", gigabytes_per_second=4800, memory_gibibytes=141),
)

# One core of a server: AVX2 with two fused multiply-add units is 32 fp32 operations a cycle, at 3 GHz.
# Memory is a placeholder; `local:N` puts in what the machine has.
_CPU = DeviceKind(
    name="cpu",
    flops_per_second=96e9,
    memory_bandwidth=10e9,
    memory_bytes=4 * 2**30,
    efficiency=VECTOR_EFFICIENCY,
    backend="cpu",
    precision="fp32",
)

PRESETS: Mapping[str, DeviceKind] = MappingProxyType({kind.name: kind for kind in (*_CARDS, _CPU)})
