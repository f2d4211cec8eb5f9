"""Timing in turn, the lengths of batches, what the machine is, and tables: shared by the speed benchmarks."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers


# Columns of the tasks whose real lengths are used, and log-normal stand-ins fitted to their training sets: mean and
# standard deviation of the logarithm, shortest, longest.
TEXT_COLUMNS = {"cola": ("sentence",), "rte": ("sentence1", "sentence2")}
STAND_INS = {"cola": (2.37, 0.33, 4, 47), "rte": (4.08, 0.48, 13, 128)}


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def time_in_turn(
    contenders: dict[str, Callable[[], Any]],
    rounds: int,
    before: Callable[[str], Any] | None = None,
    clock: str = "wall",
) -> dict[str, list[float]]:
    """Seconds of every contender in every round, after one call each that does not count.

    All run once a round, one after the other, so that a machine that slows down for a while slows down all of them.

    Args:
        contenders: name -> what to time.
        rounds: calls of each.
        before: called with a contender's name ahead of each call, outside the time.
        clock: `"wall"`, or `"cpu"`: processor time, all threads together. With one thread it is what the wall clock
            would show on an idle machine, whatever else runs; with more it counts threads that wait for each other.
    """
    now = CLOCKS[clock]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect()
    gc.disable()
    try:
        for count in range(rounds + 1):
            for name, run in contenders.items():
                if before is not None:
                    before(name)
                start = now()
                run()
                taken = now() - start
                if count:
                    seconds[name].append(taken)
    finally:
        gc.enable()
    return seconds


def compare(seconds: dict[str, list[float]], name: str, reference: str) -> dict[str, float]:
    """The fastest and median round of `name`, and its ratio to `reference` by each.

    The fastest rounds say what the code costs, the least disturbed by whatever else ran; `ratio_median` is the median
    over the rounds of the ratio within a round.
    """
    pairs = zip(seconds[name], seconds[reference], strict=True)
    return {
        "seconds": min(seconds[name]),
        "seconds_median": statistics.median(seconds[name]),
        "ratio": min(seconds[name]) / min(seconds[reference]),
        "ratio_median": statistics.median(own / other for own, other in pairs),
    }


def real_lengths(task: str, rows: int, dataset_dir: str, tokenizer: Any, max_length: int = 128) -> list[int] | None:
    """Token counts of `rows` training examples drawn with seed 0, cut at `max_length`; `None` without the data."""
    path = Path(dataset_dir) / task / "train.jsonl"
    if not path.exists():
        return None
    examples = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    drawn = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))[:rows].tolist()
    texts = [[examples[i][column] for i in drawn] for column in TEXT_COLUMNS[task]]
    return [len(ids) for ids in tokenizer(*texts, truncation=True, max_length=max_length)["input_ids"]]


def stand_in_lengths(task: str, rows: int, longest: int | None = None) -> list[int]:
    """Lengths drawn from a log-normal distribution fitted to the task's training set, seed 0."""
    mean, deviation, low, high = STAND_INS[task]
    drawn = torch.randn(rows, generator=torch.Generator().manual_seed(0)) * deviation + mean
    return drawn.exp().round().long().clamp(low, min(high, longest or high)).tolist()


def random_batch(lengths: Sequence[int], vocab_size: int) -> dict[str, torch.Tensor]:
    """Random token ids, padded on the right: what the tokens are changes no cost."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(1, vocab_size, mask.shape, generator=generator)
    return {"input_ids": ids * mask, "attention_mask": mask}


def machine() -> dict[str, Any]:
    """What a number can depend on: processor, threads, versions."""
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "blas": "MKL" if torch.backends.mkl.is_available() else "other",
    }


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print aligned columns; floats get three figures, `None` a dash."""

    def show(value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:#.3g}".rstrip(".") if isinstance(value, float) else str(value)

    cells = [list(headers), *[[show(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    print(f"\n{title}")
    for row in cells:
        print(
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write `content`, making the folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
