"""Fine-tune HIRE, or the plain head, on SQuAD 1.1, SQuAD 2.0 or your own questions.

    python run_squad.py configs/squad/squad_v2.yaml --seeds 1 2 3
    python run_squad.py configs/squad/minilm/squad_v2.yaml --dataset_dir my/squad_v2
    python run_squad.py --encoder FacebookAI/roberta-base --train_file train.json more.json \\
        --validation_file dev.json --version_2_with_negative true --output_dir outputs/own
    python run_squad.py --task squad_v2 --ensemble outputs/one outputs/other --output_dir outputs/both

A YAML file may come first; flags override it. `--help` lists all keys.
"""

from __future__ import annotations

from modeling_hire.data.squad_arguments import SquadArguments
from modeling_hire.training.answering import QuestionAnswering
from modeling_hire.training.arguments import SquadRunArguments
from modeling_hire.training.script import run_script


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run."""
    run_script("run_squad.py", __doc__, QuestionAnswering, SquadArguments, SquadRunArguments, argv)


if __name__ == "__main__":
    main()
