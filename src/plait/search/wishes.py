"""What the user fixed of a plan; everything else is the search's choice."""

from dataclasses import dataclass

from plait.cluster import Cluster
from plait.errors import PlaitError
from plait.search.pins import Pin


@dataclass(frozen=True)
class Wishes:
    """None is for the planner to choose."""

    replicas: tuple[int, ...] | None = None  # per stage
    stages: int | None = None
    micro_batches: int | None = None
    schedule: str | None = None
    pins: tuple[Pin, ...] = ()  # where stages may begin and end
    recompute: bool | None = None  # on every stage, or on none
    sync: str | None = None
    overlap: str | None = None
    bucket_bytes: int | None = None

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
    if wishes.micro_batches is not None and wishes.micro_batches * max(wishes.replicas or (1,)) > batch_size:
        least = wishes.micro_batches * max(wishes.replicas or (1,))
        raise PlaitError(
            f"batch size {batch_size} is smaller than {wishes.micro_batches} micro-batches x "
            f"{max(wishes.replicas or (1,))} replicas = {least}: some replica would have no row to work on. "
            "Use a larger batch, fewer micro-batches or fewer replicas."
        )
