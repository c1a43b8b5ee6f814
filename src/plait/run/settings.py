"""What a run is asked to do, as data that travels to every rank in a file."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from plait.errors import PlaitError


class Settings(BaseModel):
    """One run of a plan. Written by whoever starts the ranks, read by each of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: str
    plan: Path
    steps: int
    batch_size: int
    seed: int = 0
    dtype: str = "float32"
    clip_norm: float | None = None
    timeout_seconds: float = 300.0
    save: Path | None = None
    load: Path | None = None
    weights: Path | None = None
    gradients: Path | None = None  # where to leave the last step's gradients and the final weights, for `plait verify`
    disturb_rank: int | None = None  # `plait verify` proves with this that it can fail

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=2))

    @classmethod
    def read(cls, path: Path) -> "Settings":
        try:
            return cls.model_validate_json(path.read_text())
        except (OSError, ValueError) as error:
            raise PlaitError(f"cannot read the run's settings from {path}: {error}") from error
