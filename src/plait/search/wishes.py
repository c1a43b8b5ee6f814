"""What the user fixed of a plan; everything else is the search's choice."""

from dataclasses import dataclass

from plait.cluster import Cluster
from plait.errors import PlaitError
from plait.search.pins import Pin

MOST_TENSOR = 16  # devices that share a layer, unless more are asked for


@dataclass(frozen=True)
class Wishes:
    """None is for the planner to choose."""

    replicas: tuple[int, ...] | None = None  # devices of each stage
    stages: int | None = None
    micro_batches: int | None = None
    schedule: str | None = None
    pins: tuple[Pin, ...] = ()  # where stages may begin and end
    recompute: bool | None = None  # on every stage, or on none
    sync: str | None = None
    overlap: str | None = None
    bucket_bytes: int | None = None
    tensor: int | None = None  # devices that share each layer

    @property
    def num_stages(self) -> int | None:
        return len(self.replicas) if self.replicas is not None else self.stages


def check_wishes(wishes: Wishes, cluster: Cluster, batch_size: int) -> None:
    """Raises PlaitError where wishes contradict one another, the cluster or the batch."""
    num_devices = len(cluster.devices)
    if wishes.replicas is not None:
        if wishes.stages is not None and wishes.stages != len(wishes.replicas):
            raise PlaitError(
                f"{wishes.stages} stages were asked for, but replicas are given for {len(wishes.replicas)}. "
                "Give one number of replicas per stage."
            )
        if sum(wishes.replicas) > num_devices:
            raise PlaitError(
                f"the stages need {sum(wishes.replicas)} devices ({'+'.join(map(str, wishes.replicas))}), but the "
                f"cluster has {num_devices}. Use fewer replicas or a larger cluster."
            )
    elif wishes.stages is not None and wishes.stages > num_devices:
        raise PlaitError(
            f"{wishes.stages} stages were asked for, but the cluster has {num_devices} devices, and a stage "
            "needs at least one. Use fewer stages or a larger cluster."
        )
    _check_tensor(wishes, cluster)
    replicas = max(wishes.replicas or (1,)) // (wishes.tensor or 1) or 1
    if wishes.micro_batches is not None and wishes.micro_batches * replicas > batch_size:
        raise PlaitError(
            f"batch size {batch_size} is smaller than {wishes.micro_batches} micro-batches x {replicas} replicas = "
            f"{wishes.micro_batches * replicas}: some replica would have no row to work on. "
            "Use a larger batch, fewer micro-batches or fewer replicas."
        )


def _check_tensor(wishes: Wishes, cluster: Cluster) -> None:
    """Devices that share layers are on one host, and every stage has whole groups of them."""
    if wishes.tensor is None:
        return
    largest = max(len(cluster.devices_of(host.name)) for host in cluster.hosts)
    if not 1 <= wishes.tensor <= largest:
        raise PlaitError(
            f"{wishes.tensor} devices were asked for to share each layer, but they must be on one host, and none of "
            f"{cluster.name} has more than {largest}. Use a number from 1 to {largest}."
        )
    odd = [count for count in wishes.replicas or () if count % wishes.tensor]
    if odd:
        raise PlaitError(
            f"a stage was asked for on {odd[0]} devices, in groups of {wishes.tensor} that share each layer: that is "
            f"no whole number of groups. Give stages multiples of {wishes.tensor} devices."
        )


def tensor_degrees(cluster: Cluster, wishes: Wishes) -> list[int]:
    """How many devices may share layers: those asked for, or all numbers that divide a host's devices.

    Who fixes the replicas of stages alone wants them to be replicas.
    """
    if wishes.tensor is not None or wishes.replicas is not None:
        return [wishes.tensor] if wishes.tensor is not None and wishes.tensor > 1 else []
    sizes = {len(cluster.devices_of(host.name)) for host in cluster.hosts}
    return sorted({degree for size in sizes for degree in range(2, min(size, MOST_TENSOR) + 1) if size % degree == 0})
