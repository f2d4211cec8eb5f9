"""Memory on a CPU, measured one way in every benchmark.

`PeakMemory` counts tensors: exact, repeatable, and blind to what a kernel allocates and frees within one operation.
`peak_resident_bytes` asks the operating system about a fresh process: everything, the interpreter and the libraries
included, as the allocator left it. The first compares methods; the second shows beside it that nothing was missed.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import traceback
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of the tensors made inside a `with` block, at the moment when they were most.

    Storages are counted, so that views are free and a tensor that autograd saved counts until the graph lets it go.
    A storage that existed before the block counts by what it grows inside it, and nothing if it is freed there.

    Attributes:
        peak_bytes (`int`): most bytes alive at once, over what was alive on entry.
        live_bytes (`int`): bytes alive now (after the block: on leaving it), over what was alive on entry.

    Example:

    ```python
    >>> import torch
    >>> from benchmarks.memory import PeakMemory

    >>> with PeakMemory() as memory:
    ...     total = torch.ones(1000).exp().sum()
    >>> memory.peak_bytes, memory.live_bytes
    (8000, 4)
    ```
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = self.live_bytes = 0
        # Of each storage seen: a reference that tells when it dies, its size now, and how much of that counts.
        self._seen: dict[int, tuple[weakref.ref, int, int]] = {}
        self._depth = 0

    def __enter__(self) -> PeakMemory:
        self._depth += 1
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._depth -= 1
        if not self._depth:
            self._seen.clear()  # the references go, so what dies from now on is not noticed

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        # In inference mode composite operations arrive whole; what they make on the way must be seen too.
        with self:
            result = func.decompose(*args, **kwargs) if hasattr(func, "decompose") else NotImplemented
        if result is not NotImplemented:
            return result
        given = [] if func is torch.ops.aten.lift_fresh.default else _storages((args, kwargs))
        for storage in given:
            self._note(storage, born=False)
        result = func(*args, **kwargs)
        for storage in (*given, *_storages(result)):
            self._note(storage, born=True)
        return result

    def _note(self, storage: torch.UntypedStorage, born: bool) -> None:
        """Count what `storage` grew by since it was last seen; all of it, if it is new and `born` here."""
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            reference, before, counted = self._seen[key]
        else:
            reference = weakref.ref(storage, lambda _: self._forget(key))
            before, counted = (0 if born else size), 0
        self._seen[key] = reference, size, counted + size - before
        self.live_bytes += size - before
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _forget(self, key: int) -> None:
        if key in self._seen:
            self.live_bytes -= max(0, self._seen.pop(key)[2])


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [
        leaf.untyped_storage()
        for leaf in tree_iter(tree)
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and leaf.device.type != "meta"
    ]


def peak_resident_bytes(function: Callable[..., Any], *args: Any) -> int:
    """The most physical memory a fresh process ever held that called `function(*args)` and did nothing else.

    Args:
        function: can be imported by name (it is not run here).
        args: can be pickled.

    Raises:
        RuntimeError: if the call fails there, with its traceback.
    """
    context = multiprocessing.get_context("spawn")  # a forked child would start with this process's memory
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call_and_report, args=(sender, function, args))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = "it ended without a word (killed?)"
    process.join()
    if isinstance(answer, str):
        raise RuntimeError(f"{function.__name__} failed in a child process: {answer}")
    return answer


def _call_and_report(sender: Connection, function: Callable[..., Any], args: tuple) -> None:
    try:
        function(*args)
        sender.send(_peak_resident_bytes_of_self())
    except BaseException:
        sender.send(traceback.format_exc())


def _peak_resident_bytes_of_self() -> int:
    # `ru_maxrss` survives the start of a new program on Linux: a small child of a large parent reports the parent's.
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
