"""What the training scripts share: from a command line to a finished run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .arguments import EncoderArguments, ModelArguments, RunArguments
from .ensembles import evaluate_ensemble, prepare_ensemble
from .preparation import prepare
from .running import train
from .task import TrainingTask
from .yaml_arguments import YamlArgumentParser


def run_script(
    name: str,
    description: str | None,
    task_class: type[TrainingTask],
    data_class: type,
    run_class: type[RunArguments],
    argv: Sequence[str] | None = None,
    model_class: type[EncoderArguments] = ModelArguments,
) -> None:
    """Parse the command line and run; what is wrong with it is said in one line, and nothing has been written then.

    Args:
        name, description: of the script.
        task_class: the kind of task.
        data_class, run_class: dataclasses of the data part and of the run part of the command line.
        argv: the command line; unset, the process's.
        model_class: dataclass of its model part.
    """
    parser = YamlArgumentParser([model_class, data_class, run_class], description=description)
    try:
        parsed = parser.parse(sys.argv[1:] if argv is None else argv)
        is_ensemble = parsed[0].evaluates_others
        prepared = prepare_ensemble(task_class, *parsed) if is_ensemble else prepare(task_class, *parsed)
    except (ValueError, ImportError) as error:
        # What is wrong and what is allowed is in the message; where we noticed is not the user's concern. What goes
        # wrong later, in training, is shown whole.
        sys.exit(f"{name}: {error}")
    if is_ensemble:
        evaluate_ensemble(prepared)
    else:
        train(prepared)
