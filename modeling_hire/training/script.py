"""What the training scripts share: from a command line to a finished run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .arguments import ModelArguments, RunArguments
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
) -> None:
    """Parse the command line and run; what is wrong with it is said in one line, and nothing has been written then.

    Args:
        name, description: of the script.
        task_class: the kind of task.
        data_class, run_class: dataclasses of the data part and of the run part of the command line.
        argv: the command line; unset, the process's.
    """
    parser = YamlArgumentParser([ModelArguments, data_class, run_class], description=description)
    try:
        prepared = prepare(task_class, *parser.parse(sys.argv[1:] if argv is None else argv))
    except (ValueError, ImportError) as error:
        # What is wrong and what is allowed is in the message; where we noticed is not the user's concern. What goes
        # wrong later, in training, is shown whole.
        sys.exit(f"{name}: {error}")
    train(prepared)
