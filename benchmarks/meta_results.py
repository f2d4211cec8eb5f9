"""The experiments on pre-training as meta-learning of docs/results.md: all of them in turn, tables and pictures.

    python -m benchmarks.meta_results run [--only PREFIX ...] [--workers 2] [--dataset_dir ../shared/data]
    python -m benchmarks.meta_results tables [--pictures docs]

An experiment pre-trains one encoder with k inner steps from one start, and fine-tunes it on every target task for one
short epoch with a trace. The starts: `mlm`, the small masked language model of `benchmarks/train_small_mlm.py` (in
`outputs/small_mlm`), on text; `supervised`, its encoder, on five labelled tasks; `scratch`, a small BERT from random
initialisation, on text; `elmo`, a small ELMo likewise; and `elmo-converted`, original-format weights. `updates`
compares the same number of updates, `grad_evals` the same number of gradients computed. A seed varies all of it: the
batches of pre-training, new weights, and fine-tuning.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.experiments import RESULTS as ALL_RESULTS
from benchmarks.experiments import ROOT, read, table


RESULTS = ALL_RESULTS / "meta"
OUTPUTS = ROOT / "outputs" / "results" / "meta"
TARGETS = {"sst2": "glue", "sst5": "", "trec": "", "mnli": "glue", "snli": ""}
CORPUS = ("unlabelled/wiki_sentences.txt.gz", "wikitext2/valid.raw.txt.gz", "squad_v1/train.json.gz")
ON_TEXT = ["--corpus_file", *(f"DATA/{name}" for name in CORPUS)]
# No target and no relative of one is among the tasks but MNLI, which the paper names as well.
ON_TASKS = ["--tasks", "mnli", "qnli", "qqp", "rte", "mrpc", "--dataset_dir", "DATA/glue", "--max_train_samples"]
COMMON = ["--use_cpu", "true", "--bf16", "true", "--disable_tqdm", "true", "--logging_steps", "10"]
SEEDS = (1, 2)


@dataclass(frozen=True)
class Start:
    """Where pre-training begins, how it goes on, and what it is tried on.

    Attributes:
        flags: of run_meta_pretrain.py.
        updates: of a run; times k + 1 of the largest k for a run matched by gradients.
        ks: the numbers of inner steps.
        fine_tuning: flags of run_glue.py.
        targets: the tasks to fine-tune on.
        cloth: for which k the masked language model is also tried on CLOTH (None: before pre-training).
        untrained: the encoder before pre-training, None where it has no weights yet.
    """

    flags: list[str]
    updates: int
    ks: tuple[int, ...] = (0, 1, 5, 10, 20)
    fine_tuning: list[str] = field(default_factory=lambda: ["--learning_rate", "1e-4", "--new_learning_rate", "5e-4"])
    targets: tuple[str, ...] = tuple(TARGETS)
    cloth: tuple[int | None, ...] = ()
    untrained: str | None = None


SMALL_MLM = "outputs/small_mlm"
STARTS = {
    "mlm": Start(
        ["--encoder", SMALL_MLM, *ON_TEXT, "--max_length", "32", "--per_device_train_batch_size", "8"]
        + ["--inner_learning_rate", "1e-3", "--learning_rate", "1e-4", "--warmup_steps", "4"],
        updates=40,
        cloth=(None, 0, 5),
        untrained=SMALL_MLM,
    ),
    "scratch": Start(
        ["--new_encoder", "bert", "--encoder_fields"]
        + ['{"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}']
        + ["--vocab_size", "8192", *ON_TEXT, "--max_length", "32", "--per_device_train_batch_size", "16"]
        + ["--inner_learning_rate", "1e-2", "--learning_rate", "1e-3", "--warmup_steps", "12"],
        updates=120,
        fine_tuning=["--learning_rate", "5e-4"],
    ),
    "supervised": Start(
        ["--encoder", SMALL_MLM, *ON_TASKS, "2000", "--max_length", "48", "--per_device_train_batch_size", "8"]
        + ["--inner_learning_rate", "1e-3", "--learning_rate", "1e-4", "--new_learning_rate", "5e-4"]
        + ["--inner_loss", "sampled", "--outer_loss", "sampled", "--warmup_steps", "4"],
        updates=40,
        ks=(0, 5, 20),
    ),
    "elmo": Start(
        ["--new_encoder", "elmo", "--encoder_fields"]
        + ['{"filters": [[1, 16], [2, 32], [3, 64], [4, 64]], "cell_size": 256, "projection_size": 64}']
        + ["--vocab_size", "8000", *ON_TEXT, "--max_length", "32", "--per_device_train_batch_size", "16"]
        + ["--inner_learning_rate", "1e-1", "--learning_rate", "1e-3", "--warmup_steps", "10", "--weight_decay", "0"],
        updates=100,
        ks=(0, 5),
        fine_tuning=["--learning_rate", "1e-3"],
        targets=("snli",),
    ),
    "elmo-converted": Start(
        ["--encoder", "outputs/elmo_converted", "--vocab_size", "8000", *ON_TEXT, "--max_length", "32"]
        + ["--per_device_train_batch_size", "16", "--inner_learning_rate", "1e-1", "--learning_rate", "1e-3"]
        + ["--warmup_steps", "10", "--weight_decay", "0"],
        updates=100,
        ks=(0, 5),
        fine_tuning=["--learning_rate", "1e-3"],
        targets=("snli",),
        untrained="outputs/elmo_converted",
    ),
}
TRACE = ("0", "5", "10", "20", "40", "60", "80")
FINE_TUNING = [
    *("--model", "last", "--max_train_samples", "1280", "--max_eval_samples", "300", "--max_length", "48"),
    *("--max_predict_samples", "1"),
    *("--per_device_train_batch_size", "16", "--num_train_epochs", "1", "--trace_steps", *TRACE),
    *("--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false"),
]
CLOTH = ["--max_train_samples", "120", "--num_train_epochs", "1", "--learning_rate", "5e-5", "--eval_strategy", "no"]
CLOTH += ["--save_strategy", "no", "--load_best_model_at_end", "false"]


@dataclass(frozen=True)
class Experiment:
    """One encoder: its start, k (None: as it is before pre-training), what is matched, and the seed."""

    start: str
    match: str
    k: int | None
    seed: int

    @property
    def name(self) -> str:
        return f"{self.start}-{'none' if self.k is None else f'{self.match}-k{self.k}'}-seed{self.seed}"

    def command(self) -> list[str]:
        """Of its pre-training, without where the result goes."""
        start = STARTS[self.start]
        budget = start.updates * (max(start.ks) + 1 if self.match == "grad_evals" else 1)
        how = ["--inner_steps", str(self.k), "--match", self.match, "--max_steps", str(budget)]
        return [*start.flags, *how, *COMMON, "--seeds", str(self.seed)]


def experiments() -> list[Experiment]:
    """All of them, a whole seed at a time. At the largest k both ways of matching are one."""
    plan = []
    for seed in SEEDS:
        for name, start in STARTS.items():
            if start.untrained is not None:
                plan.append(Experiment(name, "none", None, seed))
            plan += [Experiment(name, "updates", k, seed) for k in start.ks]
            plan += [Experiment(name, "grad_evals", k, seed) for k in start.ks if k != max(start.ks)]
    return plan


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """What a script prints goes to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def seed_file(folder: Path) -> dict:
    """What a run wrote about its one seed."""
    return json.loads(next(folder.rglob("seed.json")).read_text(encoding="utf-8"))


def run(experiment: Experiment, dataset_dir: str) -> None:
    """Pre-train, fine-tune and write down one experiment; what is there already is kept."""
    import torch

    import run_cloze
    import run_glue
    import run_meta_pretrain

    torch.set_num_threads(1)
    os.chdir(ROOT)
    start, target, folder = STARTS[experiment.start], RESULTS / f"{experiment.name}.json", OUTPUTS / experiment.name
    record = read(RESULTS, experiment.name) or {"tasks": {}}
    if record.get("complete"):
        return
    log, began = OUTPUTS / f"{experiment.name}.log", time.perf_counter()
    encoder, masked_lm = folder / "pretrained" / "encoder", folder / "pretrained" / "masked_lm"
    if experiment.k is None:
        encoder = masked_lm = ROOT / str(start.untrained)
    elif not encoder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        command = [word.replace("DATA/", f"{dataset_dir}/") for word in experiment.command()]
        with logged(log):
            run_meta_pretrain.main([*command, "--output_dir", str(folder / "pretrained")])
        done = seed_file(folder / "pretrained")
        losses = [entry["loss"] for entry in done["log"] if "loss" in entry]
        record["command"] = " ".join(["python run_meta_pretrain.py", *experiment.command()])
        record["pretraining"] = {"seconds": round(done["train_seconds"]), "first_loss": losses[0]}
        record["pretraining"]["last_loss"] = losses[-1]
    for task in start.targets:
        if task in record["tasks"]:
            continue
        place = str(Path(dataset_dir) / TARGETS[task])
        flags = ["--task", task, "--dataset_dir", place, *FINE_TUNING, *start.fine_tuning, *COMMON]
        with logged(log):
            seeded = ["--seeds", str(experiment.seed), "--output_dir", str(folder / task)]
            run_glue.main(["--encoder", str(encoder), *flags, *seeded])
        done = seed_file(folder / task)
        final = next(iter(done["metrics"].values()))["accuracy"]
        trace = {step: value["accuracy"] for step, value in done["trace"].items()}
        record["tasks"][task] = {"accuracy": final, "trace": trace}
        save(target, record)
    if experiment.match != "grad_evals" and experiment.k in start.cloth and "cloth" not in record:
        record["cloth"] = {}
        for how, epochs in (("as it is", ["--num_train_epochs", "0"]), ("fine-tuned", [])):
            flags = ["--dataset_dir", f"{dataset_dir}/cloth", *CLOTH, *epochs, *COMMON]
            seeded = ["--seeds", str(experiment.seed), "--output_dir", str(folder / f"cloth {how}")]
            with logged(log):
                run_cloze.main(["--encoder", str(masked_lm), *flags, *seeded])
            record["cloth"][how] = seed_file(folder / f"cloth {how}")["metrics"]
    record["seconds"] = round(time.perf_counter() - began)
    record["complete"] = True
    save(target, record)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{experiment.name}: {record['seconds']} s", flush=True)


def save(target: Path, record: dict) -> None:
    """Write a record down, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    part.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    part.replace(target)


def found(start: str, match: str, k: int | None) -> list[dict]:
    """The finished records of all seeds."""
    records = (read(RESULTS, Experiment(start, match, k, seed).name) for seed in SEEDS)
    return [record for record in records if record is not None and record.get("complete")]


def cell(values: list[float]) -> str:
    """Mean and standard deviation in per cent."""
    if not values:
        return ""
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def rows_of(start: str) -> Iterator[tuple[str, str, int | None]]:
    """Title, match and k of the rows of a start's table."""
    if STARTS[start].untrained is not None:
        yield "before pre-training", "none", None
    for match in ("updates", "grad_evals"):
        for k in STARTS[start].ks:
            # At the largest k the two are one run.
            yield f"k={k}, {match}", "updates" if k == max(STARTS[start].ks) else match, k


def tables() -> str:
    """All tables."""
    parts = []
    for name, start in STARTS.items():
        header = ["encoder", "seeds", "outer loss", *start.targets, *(f"{t} early" for t in start.targets)]
        rows = []
        for title, match, k in rows_of(name):
            records = found(name, match, k)
            if not records:
                rows.append([title, "not run", *[""] * (len(header) - 2)])
                continue
            losses = [record["pretraining"]["last_loss"] for record in records if "pretraining" in record]
            final = [cell([record["tasks"][t]["accuracy"] for record in records]) for t in start.targets]
            early = [
                cell([statistics.mean(record["tasks"][t]["trace"][step] for step in TRACE[1:5]) for record in records])
                for t in start.targets
            ]
            loss = f"{statistics.mean(losses):.2f}" if losses else ""
            rows.append([title, str(len(records)), loss, *final, *early])
        parts.append(f"### From {name}\n\n{table(header, rows)}")
        if start.cloth:
            parts.append(f"#### CLOTH, from {name}\n\n{cloth_table(name)}")
    return "\n".join(parts)


def cloth_table(start: str) -> str:
    """Accuracy of the cloze test by school level, as the encoder is and after fine-tuning."""
    rows, metrics = [], []
    for k in STARTS[start].cloth:
        records = found(start, "none" if k is None else "updates", k)
        for how in ("as it is", "fine-tuned"):
            values = [record["cloth"][how]["test"] for record in records if "cloth" in record]
            metrics = metrics or sorted(values[0] if values else [])
            title = "before pre-training" if k is None else f"k={k}, updates"
            rows.append([f"{title}, {how}", *(cell([value[metric] for value in values]) for metric in metrics)])
    return table(["encoder", *metrics], rows)


def pictures(folder: Path) -> None:
    """The traces of every start and task, runs matched by updates."""
    from benchmarks.meta_trace import draw

    for name, start in STARTS.items():
        for task in start.targets:
            traces = {}
            for title, match, k in rows_of(name):
                records = found(name, match, k)
                if match == "grad_evals" or not records or title in traces or "grad_evals" in title:
                    continue
                steps = records[0]["tasks"][task]["trace"]
                traces[title] = {int(step): [r["tasks"][task]["trace"][step] for r in records] for step in steps}
            if traces:
                draw(str(folder / f"meta_{name}_{task}.png"), traces, "accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "tables"])
    parser.add_argument("--only", nargs="*", default=[""], help="Run the experiments whose names start so.")
    parser.add_argument("--workers", type=int, default=2, help="Experiments at a time, one thread each.")
    parser.add_argument("--dataset_dir", default="../shared/data")
    parser.add_argument("--pictures", type=Path, help="Folder for the pictures of the traces.")
    options = parser.parse_args()
    if options.action == "tables":
        print(tables())
        if options.pictures is not None:
            pictures(options.pictures)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = str(Path(options.dataset_dir).resolve())
    with ProcessPoolExecutor(options.workers, max_tasks_per_child=1) as pool:
        wanted = [e for e in experiments() if e.name.startswith(tuple(options.only))]
        for future in [pool.submit(run, experiment, folder) for experiment in wanted]:
            future.result()


if __name__ == "__main__":
    main()
