"""What a person sees while a run goes on: a bar per stage in a terminal, a line per stage elsewhere.

with shown(): ...  with stage("evaluation: before", total) as tick: tick() ... tick(note="57 % solved")
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

log = logging.getLogger(__name__)

LINE_SECONDS = 20.0
"""Without a terminal: least time between two lines of one stage."""

_display: ContextVar[Display | None] = ContextVar("display", default=None)


class Tick(Protocol):
    """Advances a stage by `steps` and shows `note` beside it."""

    def __call__(self, steps: int = 1, *, note: str | None = None) -> None: ...


class Display(Protocol):
    """Where stages are shown."""

    def stage(self, name: str, total: int | None) -> Iterator[Tick]: ...

    def say(self, text: str) -> None: ...


@contextmanager
def shown(console: Console | None = None) -> Iterator[None]:
    """Show stages on `console` (default: standard error) while this is open."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        token = _display.set(_Lines(console))
        try:
            yield
        finally:
            _display.reset(token)
        return
    columns = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}", justify="left"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as bars:
        token = _display.set(_Bars(bars))
        try:
            yield
        finally:
            _display.reset(token)


@contextmanager
def stage(name: str, total: int | None) -> Iterator[Tick]:
    """One stage of `total` steps; shows nothing where no display is open (a flow started from the Prefect UI)."""
    display = _display.get()
    if display is None:
        yield _silent
        return
    yield from display.stage(name, total)


def say(text: str) -> None:
    """Tell the person something once; it goes to the log where no display is open."""
    display = _display.get()
    if display is None:
        log.warning(text)
    else:
        display.say(text)


def _silent(steps: int = 1, *, note: str | None = None) -> None:
    del steps, note


class _Bars:
    """Bars that stay when they are full; one that ends early is closed where it stood."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars

    def say(self, text: str) -> None:
        self._bars.console.print(text, highlight=False)

    def stage(self, name: str, total: int | None) -> Iterator[Tick]:
        task = self._bars.add_task(name, total=total, note="")

        def tick(steps: int = 1, *, note: str | None = None) -> None:
            self._bars.advance(task, steps)
            if note is not None:
                self._bars.update(task, note=note)

        yield tick
        done = self._bars.tasks[self._bars.task_ids.index(task)]
        self._bars.update(task, total=done.completed or 1, completed=done.completed or 1)


class _Lines:
    """One line when a stage begins and ends, and now and then between."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def stage(self, name: str, total: int | None) -> Iterator[Tick]:
        started = said = time.monotonic()
        done, last = 0, ""

        def tick(steps: int = 1, *, note: str | None = None) -> None:
            nonlocal done, last, said
            done += steps
            last = note if note is not None else last
            if time.monotonic() - said > LINE_SECONDS:
                said = time.monotonic()
                self.say(f"{name}: {done} of {total or '?'} {last}")

        yield tick
        self.say(f"{name}: done, {done} in {time.monotonic() - started:.0f} s {last}")

    def say(self, text: str) -> None:
        self._console.print(text.rstrip(), highlight=False)
        sys.stderr.flush()
