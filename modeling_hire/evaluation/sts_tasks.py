"""The similarity tasks known by name: where they lie, their columns, and the range of their scores."""

from __future__ import annotations

from dataclasses import dataclass

from ..data.messages import did_you_mean, listing


@dataclass(frozen=True)
class STSTask:
    """What there is to know about a similarity task before reading it.

    Args:
        name: short name, and name of its folder.
        title: name for people.
        splits: those evaluated when none is asked for, as far as they are there.
        score_columns: names of the gold score's column in the copies that go around.
        score_range: lowest and highest gold score.
        subset_column: names the subset that a pair is from, for tasks that are made of several.
        folders: other names of its folder.
        hub_path: its dataset on the Hub, with columns `sentence1`, `sentence2` and `score`.
        hub_note: what a user of that copy should know.
    """

    name: str
    title: str
    splits: tuple[str, ...]
    score_columns: tuple[str, ...]
    score_range: tuple[float, float]
    hub_path: str
    subset_column: str | None = None
    folders: tuple[str, ...] = ()
    hub_note: str = ""


_SCORES = ("label", "score", "relatedness_score", "similarity_score")


def _semeval(year: str) -> STSTask:
    return STSTask(
        name=f"sts{year}",
        title=f"STS{year}",
        splits=("test",),
        score_columns=_SCORES,
        score_range=(0.0, 5.0),
        hub_path=f"mteb/sts{year}-sts",
        subset_column="source",
        hub_note="does not say which subset a pair is from, so only aggregation='all' is possible.",
    )


STS_TASKS: dict[str, STSTask] = {
    task.name: task
    for task in (
        *(_semeval(year) for year in ("12", "13", "14", "15", "16")),
        STSTask(
            name="stsb",
            title="STS-B",
            splits=("validation", "test"),
            score_columns=_SCORES,
            score_range=(0.0, 5.0),
            hub_path="mteb/stsbenchmark-sts",
            folders=("sts-b", "stsbenchmark"),
        ),
        STSTask(
            name="sick",
            title="SICK-R",
            splits=("validation", "test"),
            score_columns=("relatedness_score", *_SCORES),
            score_range=(1.0, 5.0),
            hub_path="mteb/sickr-sts",
            folders=("sickr", "sick-r"),
            hub_note="holds all 9,927 pairs of SICK in each split, not the 4,927 of its test split.",
        ),
    )
}


def parse_task(text: str) -> tuple[STSTask, str | None]:
    """The task and the split of `"sts12"` or `"stsb:validation"`.

    Raises:
        ValueError: if there is no such task.

    Example:
        >>> task, split = parse_task("STS-B:validation")
        >>> task.name, split
        ('stsb', 'validation')
    """
    name, _, split = text.partition(":")
    key = name.strip().lower()
    task = next((task for task in STS_TASKS.values() if key in (task.name, *task.folders)), None)
    if task is None:
        raise ValueError(
            f"tasks={text!r}: no such task; allowed is one of {listing(STS_TASKS)}, with a split if you like "
            f"('stsb:validation').{did_you_mean(key, STS_TASKS)}"
        )
    if ":" in text and not split.strip():
        raise ValueError(f"tasks={text!r}: no split after the colon; allowed is for example {task.name}:validation.")
    return task, split.strip() or None
