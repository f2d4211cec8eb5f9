"""Fine-tune HIRE, or the plain head, on GLUE, SNLI, SST-5, TREC or your own files.

    python run_glue.py configs/hire/cola.yaml --seeds 1 2 3
    accelerate launch run_glue.py configs/hire/rte.yaml --output_dir outputs/rte
    python run_glue.py --encoder FacebookAI/roberta-base --train_file train.csv --validation_file dev.csv \
        --output_dir outputs/own

A YAML file may come first; flags override it. `--help` lists all keys.
"""

from __future__ import annotations

import sys

from modeling_hire.data.arguments import DataArguments
from modeling_hire.training.arguments import ModelArguments, RunArguments
from modeling_hire.training.classification import train
from modeling_hire.training.preparation import prepare
from modeling_hire.training.yaml_arguments import YamlArgumentParser


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = YamlArgumentParser([ModelArguments, DataArguments, RunArguments], description=__doc__)
    try:
        prepared = prepare(*parser.parse(sys.argv[1:] if argv is None else argv))
    except (ValueError, ImportError) as error:
        # What is wrong and what is allowed is in the message; where we noticed is not the user's concern. What goes
        # wrong later, in training, is shown whole.
        sys.exit(f"run_glue.py: {error}")
    train(prepared)


if __name__ == "__main__":
    main()
