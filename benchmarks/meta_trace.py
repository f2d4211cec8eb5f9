"""How fast fine-tuning learns from different starts: the metric against the number of updates, drawn.

    python run_glue.py --encoder outputs/meta-0/encoder --task sst2 --trace_steps 0 10 20 50 100 --seeds 1 2 3 \\
        --output_dir outputs/sst2-0
    python -m benchmarks.meta_trace k=0:outputs/sst2-0 k=5:outputs/sst2-5 --metric accuracy --output trace.png

Each run is a folder that `run_glue.py` wrote with `--trace_steps`; several seeds give a mean and a band of one
standard deviation. Beside the picture a table is printed, and written as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import print_table, write_json


def read_trace(folder: Path, metric: str) -> dict[int, list[float]]:
    """The metric of each seed by number of updates.

    Raises:
        ValueError: if there is no trace, or none of this metric.
    """
    files = sorted([*folder.glob("seed.json"), *folder.glob("seed-*/seed.json")])
    traces = [json.loads(file.read_text(encoding="utf-8")).get("trace") for file in files]
    if not files or not all(traces):
        raise ValueError(f"{folder}: no trace there; run with --trace_steps.")
    steps = sorted({int(step) for trace in traces for step in trace})
    found = {
        step: [trace[str(step)][metric] for trace in traces if metric in trace.get(str(step), {})] for step in steps
    }
    if not any(found.values()):
        raise ValueError(f"{folder}: the trace has no {metric!r}, but {sorted(next(iter(traces[0].values())))}.")
    return {step: values for step, values in found.items() if values}


def draw(path: str, traces: dict[str, dict[int, list[float]]], metric: str) -> None:
    """A line a start, with a band where there are several seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from modeling_hire.analysis.plots import save_figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, trace in traces.items():
        means = [statistics.mean(values) for values in trace.values()]
        (line,) = axes.plot(list(trace), means, marker="o", markersize=3, label=name)
        spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in trace.values()]
        bounds = [
            [m - s for m, s in zip(means, spread, strict=True)],
            [m + s for m, s in zip(means, spread, strict=True)],
        ]
        axes.fill_between(list(trace), *bounds, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xlabel("updates of fine-tuning")
    axes.set_ylabel(metric)
    axes.legend(frameon=False)
    save_figure(figure, path)


def main(argv: Sequence[str] | None = None) -> dict[str, dict[int, list[float]]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME:FOLDER")
    parser.add_argument("--metric", default="accuracy")
    parser.add_argument("--output", required=True, help="The picture; the numbers are beside it, as .json.")
    options = parser.parse_args(argv)
    traces = {}
    for run in options.runs:
        name, separator, folder = run.partition(":")
        if not separator:
            parser.error(f"{run!r}: allowed is NAME:FOLDER.")
        traces[name] = read_trace(Path(folder), options.metric)
    steps = sorted({step for trace in traces.values() for step in trace})
    rows = [
        [name, *(statistics.mean(trace[step]) if step in trace else None for step in steps)]
        for name, trace in traces.items()
    ]
    print_table(options.metric, ["updates", *map(str, steps)], rows)
    write_json(str(Path(options.output).with_suffix(".json")), {"metric": options.metric, "traces": traces})
    draw(options.output, traces, options.metric)
    return traces


if __name__ == "__main__":
    main()
