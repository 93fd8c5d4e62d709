"""What a piece of work costs, in counts that are the same on every machine and under any load: nothing here is a time.

`instructions`: of Python's bytecode, in modrl and in all libraries. `operators`: those that torch dispatched, backward passes
included. `bytes`: memory that a single instruction took or a torch operator wrote, from a page on; less costs by its number alone.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modrl.tree import leaves

PAGE = 4096
WARM_UP = 10
"""Times that the work is done first, for lazy imports and caches."""


class Counts(NamedTuple):
    """The costs of some work."""

    instructions: Counter[str]  # by function
    operators: Counter[str]  # by name
    bytes: int


def count(work: Callable[[], Any]) -> Counts:
    """What the work costs once it is warm."""
    for _ in range(WARM_UP):
        work()
    traced, dispatched = _Traced(), _Dispatched()
    gc.collect()
    gc.disable()  # when it collects is chance, and destructors are instructions too
    try:
        traced.run(work)
        with dispatched:
            work()
    finally:
        gc.enable()
    functions = Counter({f"{file}: {name}": number for (file, name), number in traced.instructions.items()})
    return Counts(functions, dispatched.operators, traced.bytes + dispatched.bytes)


class _Traced:
    """Counts instructions, and what they took of Python's memory, numpy's arrays included, whether they still have it or not."""

    def __init__(self) -> None:
        self.instructions = Counter[tuple[str, str]]()  # by file and function
        self.bytes = 0
        self._held = 0

    def run(self, work: Callable[[], Any]) -> None:
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for one frame that has it when tracing begins
        tracemalloc.start()
        self._held = tracemalloc.get_traced_memory()[0]
        sys.settrace(self._enter)
        try:
            work()
        finally:
            sys.settrace(before)
            tracemalloc.stop()

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace = self._each  # from Python 3.13 on the next line has no effect without it
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._each

    def _each(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            taken = tracemalloc.get_traced_memory()[1] - self._held  # by the instruction before
            if taken >= PAGE:
                self.bytes += taken
            self.instructions[frame.f_code.co_filename, frame.f_code.co_qualname] += 1
            tracemalloc.reset_peak()
            self._held = tracemalloc.get_traced_memory()[0]  # what counting takes is not counted
        return self._each


class _Dispatched(TorchDispatchMode):
    """Counts torch's operators, and what they write."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = Counter[str]()
        self.bytes = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        self.operators[str(operator)] += 1
        if not operator.is_view:
            written = leaves(result) or leaves(args[:1])  # some that write to their arguments give nothing
            self.bytes += sum(x.nbytes for x in written if isinstance(x, torch.Tensor) and x.nbytes >= PAGE)
        return result
