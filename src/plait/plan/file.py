"""The plan's file: JSON with a schema version, validated on the way in, written whole or not at all."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plait.cluster import Cluster
from plait.errors import PlaitError
from plait.plan.plan import DEFAULT_BUCKET_BYTES, Plan, StagePlan

VERSION = 2  # 2: tensor groups


class _Stage(BaseModel):
    model_config = ConfigDict(extra="forbid")
    start: int = Field(ge=0)
    end: int = Field(ge=1)
    devices: list[int] = Field(min_length=1)
    shares: list[float] = Field(min_length=1)
    recompute: bool = False
    sum_order: list[int] = Field(default_factory=list)
    tensor: int = Field(default=1, ge=1)
    split: dict[str, int] = Field(default_factory=dict)


class _PlanFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    format: Literal["plait-plan"]
    version: int
    model: str
    fingerprint: str
    cluster: dict[str, Any]
    batch_size: int = Field(ge=1)
    micro_batches: int = Field(ge=1)
    schedule: str
    stages: list[_Stage] = Field(min_length=1)
    sync: str = "ring"
    overlap: Literal["off", "backward", "full"] = "full"
    lanes: list[str] = Field(default_factory=list)
    bucket_bytes: int = Field(default=DEFAULT_BUCKET_BYTES, ge=1)
    batch: Any = None
    predicted_seconds: float | None = None
    notes: dict[str, Any] = Field(default_factory=dict)


def save_plan(plan: Plan, path: Path | str) -> None:
    """Writes beside and renames: a reader sees the old file or the new one, never half of it."""
    path = Path(path)
    content = {
        "format": "plait-plan",
        "version": VERSION,
        "model": plan.model,
        "fingerprint": plan.fingerprint,
        "cluster": plan.cluster.to_dict(),
        "batch_size": plan.batch_size,
        "micro_batches": plan.micro_batches,
        "schedule": plan.schedule,
        "stages": [asdict(stage) for stage in plan.stages],
        "sync": plan.sync,
        "overlap": plan.overlap,
        "lanes": plan.lanes,
        "bucket_bytes": plan.bucket_bytes,
        "batch": plan.batch,
        "predicted_seconds": plan.predicted_seconds,
        "notes": plan.notes,
    }
    text = json.dumps(content, indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PlaitError(
            f"cannot write the plan to {path}: {error.strerror}. Choose another place with --out."
        ) from error


def load_plan(path: Path | str) -> Plan:
    """Reads a plan file; PlaitError says what is wrong with it."""
    path = Path(path)
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise PlaitError(
            f"cannot read plan {path}: {error.strerror}. Make one with `plait plan JOB --out {path}`."
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PlaitError(f"plan {path} is not valid JSON ({error}). It is damaged: plan again.") from error
    version = content.get("version") if isinstance(content, dict) else None
    if not isinstance(content, dict) or content.get("format") != "plait-plan":
        raise PlaitError(f'{path} is not a plan: its `format` must be "plait-plan". Make one with `plait plan`.')
    if type(version) is not int or not 1 <= version <= VERSION:
        raise PlaitError(
            f"plan {path} has schema version {version!r}; this Plait reads versions up to {VERSION}. "
            "Update Plait, or plan again with this one."
        )
    try:
        parsed = _PlanFile.model_validate(content)
        cluster = Cluster.from_dict(parsed.cluster)
    except ValidationError as error:
        raise PlaitError(f"plan {path} is damaged: {_what_is_wrong(error)}. Plan again with `plait plan`.") from error
    except PlaitError as error:
        raise PlaitError(f"the cluster in plan {path} is damaged: {error}. Plan again with `plait plan`.") from error
    return Plan(
        model=parsed.model,
        fingerprint=parsed.fingerprint,
        cluster=cluster,
        batch_size=parsed.batch_size,
        micro_batches=parsed.micro_batches,
        schedule=parsed.schedule,
        stages=tuple(
            StagePlan(
                **{
                    **s.model_dump(),
                    "devices": tuple(s.devices),
                    "shares": tuple(s.shares),
                    "sum_order": tuple(s.sum_order),
                }
            )
            for s in parsed.stages
        ),
        sync=parsed.sync,
        overlap=parsed.overlap,
        lanes=tuple(parsed.lanes),
        bucket_bytes=parsed.bucket_bytes,
        batch=parsed.batch,
        predicted_seconds=parsed.predicted_seconds,
        notes=parsed.notes,
    )


def _what_is_wrong(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place} = {first['input']!r}: {first['msg']}"
