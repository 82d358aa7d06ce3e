"""A process that runs data processing functions, one call at a time: `python -m sterna.runtime.functions.worker`.

Only this process imports them.  It reads questions from standard input and writes answers to standard output; output of
functions goes to standard error.  It ends with its node and has a limit of memory.  An exception of a function is an
answer; the node kills a process that hangs.

    question  := length of the name (1 byte), of the payload (4 bytes), name, payload
    answer    := length (4 bytes), MessagePack: [number (or an object) or nil, what went wrong]
    first answer, unasked: {name: what went wrong} of functions that cannot be loaded
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

import msgspec

QUESTION = struct.Struct(">BI")
ANSWER = struct.Struct(">I")
TEXT_MAX = 500
"""Characters of what went wrong."""
NICE = 5
_PR_SET_PDEATHSIG = 1


class WorkerStart(msgspec.Struct, frozen=True):
    """The orders to a worker on its command line, as JSON."""

    functions: dict[str, str]
    """Name -> module:function."""
    directory: str
    """Where to look for modules before anywhere else; empty: nowhere."""
    memory_bytes: int
    """0: any."""
    parent: int
    answers_objects: bool = False
    """Functions take what JSON says and return what JSON can say; else bytes and a number."""


def main(arguments: list[str]) -> None:
    start = msgspec.json.decode(arguments[0], type=WorkerStart)
    _behave(start)
    questions, answers = _take_over_standard_streams()
    if start.directory:
        sys.path.insert(0, start.directory)
    functions: dict[str, Callable[[bytes], Any]] = {}
    failed: dict[str, str] = {}
    for name, call in start.functions.items():
        try:
            functions[name] = _loaded(call)
        except Exception as error:  # importing runs code of somebody else's
            failed[name] = _what(error)
    _answer(answers, failed)
    while True:
        head = questions.read(QUESTION.size)
        if len(head) < QUESTION.size:
            return
        name_length, payload_length = QUESTION.unpack(head)
        name = questions.read(name_length).decode()
        payload = questions.read(payload_length)
        try:
            if start.answers_objects:
                _answer(answers, (functions[name](msgspec.json.decode(payload)), ""))
            else:
                _answer(answers, (float(functions[name](payload)), ""))
        except Exception as error:  # a function of somebody else's, on a payload of anybody's
            _answer(answers, (None, _what(error)))


def _behave(start: WorkerStart) -> None:
    """Die with the node, stay behind it in the queue for the processor, and keep within bounds."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != start.parent:
        sys.exit(0)  # the node is gone already
    os.nice(NICE)
    if start.memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (start.memory_bytes, start.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _take_over_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """So that nothing a function reads or prints gets between the node and its answers."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return questions, answers


def _loaded(call: str) -> Callable[[bytes], Any]:
    module, _, path = call.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{call} is not a function")
    return found  # type: ignore[no-any-return]


def _answer(answers: BinaryIO, answer: object) -> None:
    data = msgspec.msgpack.encode(answer)
    answers.write(ANSWER.pack(len(data)) + data)
    answers.flush()


def _what(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:TEXT_MAX]


if __name__ == "__main__":
    main(sys.argv[1:])
