"""Two processes on this machine, for the tests of distributed training."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


REPOSITORY = Path(__file__).resolve().parents[1]
WORLD = 2


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(**more: Any) -> dict[str, str]:
    """This process's environment, without a network and with one thread."""
    more |= {"HF_HUB_OFFLINE": 1, "OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": "lo"}
    return {name: str(value) for name, value in {**os.environ, **more}.items()}


def run_together(work: Callable[..., None], *args: Any) -> None:
    """Call `work(rank, *args)` in two processes that find each other when they start to train together.

    Args:
        work: can be imported by name.
        args: can be pickled.
    """
    context = torch.multiprocessing.spawn(_start, (work, free_port(), args), nprocs=WORLD, join=False)
    try:
        while not context.join(timeout=500):
            pass
    finally:
        for process in context.processes:
            process.kill()


def _start(rank: int, work: Callable[..., None], port: int, args: tuple[Any, ...]) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": WORLD}
    os.environ |= environment(RANK=rank, LOCAL_RANK=rank, **where)
    torch.set_num_threads(1)
    work(rank, *args)
    torch.distributed.destroy_process_group()
