"""Parts of an experiment at the same time, each in a process of its own: what mostly waits need not wait in turn."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.brokers import tie_to_parent

Talk = Callable[[str], None]
Job = Callable[..., None]
"""Takes its arguments, and whom to tell how it goes."""


def run_side_by_side(job: Job, jobs: Sequence[tuple[Any, ...]], at_a_time: int, talk: Talk) -> None:
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
                _listen(one, running, talk)
    finally:
        for one_left in running.values():
            one_left.kill()
            one_left.join()


def _listen(one: Connection, running: dict[Connection, BaseProcess], talk: Talk) -> None:
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
    talk(line)


def _work(job: Job, arguments: tuple[Any, ...], parent: Connection) -> None:
    tie_to_parent(None)
    try:
        job(*arguments, lambda line: parent.send((line, "")))
    except MeasurementError as error:
        parent.send(("", str(error)))
