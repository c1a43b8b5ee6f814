"""The models of the planning benches, each as a graph with costs on every preset kind of device.

`cases` pairs them with clusters. A model is captured (on `meta`) and costed once per process: its costs hold all
presets, so every cluster of `_clusters` uses the same.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from plait.cluster import PRESETS, Cluster
from plait.cost import Costs, analytic_costs, imported_costs, optimizer_cost
from plait.graph import Graph, Model, build_graph
from plait.graph.profiles import load_profile, profile_graph
from plait.jobs import load_job

PROFILES = Path(os.environ.get("PLAIT_PROFILES") or Path(__file__).parents[2] / "shared" / "profiles")

# Rows of one step. Language models: the batch they were published with (512 sequences for GPT-2, 256 for BERT).
# Images, and GNMT's sentences: 64 a device, as PipeDream and GPipe have it, on 16 devices, the middle of the suite.
BATCH_SIZES: Mapping[str, int] = {
    "gpt2-medium": 512,
    "gpt2-large": 512,
    "gpt2-xl": 512,
    "bert-large": 256,
    "vgg19": 1024,
    "resnet152": 1024,
    "inception-v3": 1024,
    "alexnet.txt": 1024,
    "vgg16.txt": 1024,
    "resnet50.txt": 1024,
    "gnmt.txt": 1024,
    "bert32-a100.piper.json": 256,
}
# What the public profiles were measured on; with how many rows the importer assumes where the file does not say.
_MEASURED_ON = {"bert32-a100.piper.json": "a100"}
_OTHERS_MEASURED_ON = "v100"
_EXAMPLE_ROWS = 8


@dataclass(frozen=True)
class Case:
    name: str
    graph: Graph
    costs: Costs
    cluster: Cluster
    batch_size: int


def models() -> tuple[str, ...]:
    """Names of the models at hand; says which are left out."""
    return tuple(name for name in BATCH_SIZES if "." not in name or _at_hand(name))


def cases(names: Iterable[str], clusters: Iterable[Cluster]) -> Iterator[Case]:
    """Every model on every cluster; a profile that is not at hand is left out with a line that says so."""
    clusters = tuple(clusters)
    for name in names:
        if "." in name and not _at_hand(name):
            continue
        graph, costs = profiled(name) if "." in name else captured(name)
        for cluster in clusters:
            yield Case(f"{name} on {cluster.name}", graph, costs, cluster, BATCH_SIZES[name])


def captured(name: str) -> tuple[Graph, Costs]:
    """A built-in job, computed for every preset."""
    model, costs = captured_model(name)
    return model.graph, costs


@cache
def captured_model(name: str) -> tuple[Model, Costs]:
    """The same with its code."""
    job = load_job(name)
    with torch.device("meta"):
        module = job.model()
    batch = pytree.tree_map_only(Tensor, lambda t: t.to("meta"), next(iter(job.batches(_EXAMPLE_ROWS, 0))))
    model = build_graph(module, batch, loss=job.loss, name=job.name)
    state = optimizer_cost(job.optimizer).state_bytes_per_byte
    return model, analytic_costs(model, batch, kinds=list(PRESETS.values()), state_bytes_per_byte=state)


@cache
def profiled(name: str) -> tuple[Graph, Costs]:
    """A public profile; other cards than the one it was measured on go by the ratio of what the two sustain."""
    profile = load_profile(PROFILES / name)
    graph = profile_graph(profile)
    first = PRESETS[_MEASURED_ON.get(name, _OTHERS_MEASURED_ON)]
    kinds = [first, *(kind for kind in PRESETS.values() if kind != first)]
    return graph, imported_costs(profile, graph, kinds=kinds)


@cache
def _at_hand(name: str) -> bool:
    if (PROFILES / name).is_file():
        return True
    repository = "msr-fiddle/piper" if name.endswith(".json") else "msr-fiddle/pipedream"
    print(f"{name} is left out: it is public in github.com/{repository}; name its folder in PLAIT_PROFILES")
    return False
