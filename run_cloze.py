"""Score, or fine-tune, masked language models on cloze tests (CLOTH): the right word of four for each blank.

    python run_cloze.py --encoder google-bert/bert-base-uncased --dataset_dir cloth --output_dir outputs/cloth
    python run_cloze.py --encoder outputs/meta/masked_lm --dataset_dir cloth --num_train_epochs 0 \
        --output_dir outputs/untrained

A YAML file may come first; flags override it. `--help` lists all keys.
"""

from __future__ import annotations

from modeling_hire.data.cloze import ClozeArguments
from modeling_hire.training.cloze import Cloze, ClozeRunArguments, MaskedLMArguments
from modeling_hire.training.script import run_script


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run."""
    run_script("run_cloze.py", __doc__, Cloze, ClozeArguments, ClozeRunArguments, argv, model_class=MaskedLMArguments)


if __name__ == "__main__":
    main()
