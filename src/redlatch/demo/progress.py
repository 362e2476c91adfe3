"""The demo's output on stderr while it runs: a line for each event, and a progress bar in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn


class Display:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.completed} sold of {task.total} in stock"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self.at = "the start"

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def chapter(self, what: str, stock: int | None = None) -> None:
        self.at = what.strip()
        self._console.print(what, highlight=False)
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        if stock is not None:
            self._task = self._bar.add_task(" ", total=stock)

    def happened(self, seconds: float, what: str) -> None:
        self._console.print(f"  {seconds:5.2f} s  {what}", highlight=False)

    def sold(self, count: int) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=count)
