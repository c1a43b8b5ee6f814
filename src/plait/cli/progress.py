"""The live line of a run: loss, step time, throughput, next to what was predicted."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from plait.cluster.units import format_bytes, format_seconds
from plait.jobs import Job
from plait.plan import Plan
from plait.run.session import RunRecord


class Progress:
    """A context that shows the line; where the output is no terminal, a line of text now and then."""

    def __init__(self, console: Console, job: Job, plan: Plan, steps: int, predicted: float) -> None:
        self._console = console
        self._job = job
        self._plan = plan
        self._steps = steps
        self._predicted = predicted
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
        )
        self._bar = Bar(*columns, console=console)
        self._task = self._bar.add_task(f"train {job.name}", total=steps, status="starting the ranks …")

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop() if self._console.is_terminal else None

    def update(self, record: RunRecord) -> None:
        status = self._status(record)
        done = len(record.losses)
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done, status=status)
        elif done == 1 or done == self._steps or done % max(self._steps // 10, 1) == 0:
            self._console.print(f"step {done}/{self._steps}  {status}", highlight=False)

    def _status(self, record: RunRecord) -> str:
        seconds = record.seconds[-1]
        rows = self._plan.batch_size / seconds
        tokens = self._job.tokens_per_sample
        speed = f"{rows * tokens:,.0f} tokens/s" if tokens else f"{rows:,.1f} samples/s"
        held = f"  {format_bytes(record.memory_bytes[0])} on rank 0"
        step = f"step {format_seconds(seconds)} (predicted {format_seconds(self._predicted)})"
        return f"loss {record.losses[-1]:.4f}  {step}  {speed}{held}"
