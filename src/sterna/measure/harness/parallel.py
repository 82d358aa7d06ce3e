"""Parts of an experiment at the same time, each in a process of its own: what mostly waits need not wait in turn."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.processes import tie_to_parent

ParallelJob = Callable[..., None]
"""Takes its arguments, and whom to tell how it goes."""


def run_side_by_side(job: ParallelJob, jobs: Sequence[tuple[Any, ...]], at_a_time: int, say: Say) -> None:
    """The first that fails ends them all, with what it said."""
    spawn = multiprocessing.get_context("spawn")
    due = list(reversed(jobs))
    running: dict[Connection, BaseProcess] = {}
    try:
        while due or running:
            while due and len(running) < at_a_time:
                ours, theirs = spawn.Pipe(duplex=False)
                process = spawn.Process(target=_work, args=(job, due.pop(), theirs), daemon=True)
                process.start()
                theirs.close()
                running[ours] = process
            for one in wait(list(running)):
                assert isinstance(one, Connection)
                _listen(one, running, say)
    finally:
        for one_left in running.values():
            one_left.kill()
            one_left.join()


def _listen(one: Connection, running: dict[Connection, BaseProcess], say: Say) -> None:
    try:
        line, problem = one.recv()
    except EOFError:
        process = running.pop(one)
        process.join()
        one.close()
        if process.exitcode:
            raise MeasurementError(f"a part of it ended with status {process.exitcode}") from None
        return
    if problem:
        raise MeasurementError(problem)
    say(line)


def _work(job: ParallelJob, arguments: tuple[Any, ...], parent: Connection) -> None:
    tie_to_parent()
    try:
        job(*arguments, lambda line: parent.send((line, "")))
    except MeasurementError as error:
        parent.send(("", str(error)))
