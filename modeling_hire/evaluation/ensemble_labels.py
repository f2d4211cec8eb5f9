"""Matching the classes of an ensemble's members by name."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.labels import align_labels, is_generic
from ..data.messages import listing
from .ensemble_members import Member


def match_labels(
    members: Sequence[Member], label_names: Sequence[str] | None = None
) -> tuple[tuple[str, ...] | None, list[list[int]]]:
    """The classes of an ensemble, and where each member has them.

    Args:
        members: with the configurations of text classifiers.
        label_names: the classes in the wanted order, by default the first member's. Where they are given, members
            whose classes have no names (`LABEL_0`, ...) are taken to have them in this order.

    Returns:
        The names of the classes in order, `None` if members predict a score; and for each member the places of these
        classes in its logits.

    Raises:
        ValueError: if some members predict classes and some a score, their classes differ, or a member predicts
            several classes or several scores at once.
    """
    first, *others = members
    for member in members:
        if member.config.problem_type == "multi_label_classification":
            raise ValueError(
                f"{member.name}: problem_type='multi_label_classification' gives several classes to a text; allowed "
                "are classifiers with one, and models that predict a score."
            )
        if member.config.problem_type == "regression" and member.config.num_labels != 1:
            raise ValueError(
                f"{member.name}: predicts {member.config.num_labels} scores; allowed are one score, or classes."
            )
    kinds = {True: "a score", False: "classes"}
    for member in others:
        if _is_scorer(member) != _is_scorer(first):
            raise ValueError(
                f"members: {first.name} predicts {kinds[_is_scorer(first)]} and {member.name} "
                f"{kinds[_is_scorer(member)]}; allowed is one kind."
            )
    if _is_scorer(first):
        if label_names is not None:
            raise ValueError(f"label_names={list(label_names)}: the members predict a score; allowed is None.")
        return None, [[0]] * len(members)
    names = tuple(_names(first) if label_names is None else label_names)
    return names, [_places(member, names, first if label_names is None else None) for member in members]


def _is_scorer(member: Member) -> bool:
    return member.config.num_labels == 1


def _names(member: Member) -> list[str]:
    return [str(member.config.id2label[index]) for index in range(member.config.num_labels)]


def _places(member: Member, names: tuple[str, ...], origin: Member | None) -> list[int]:
    """Where a member has the named classes, which are those of `origin` or given by the user."""
    own = _names(member)
    whose = "label_names has" if origin is None else f"{origin.name} has the labels"
    message = (
        f"members: {whose} {listing(names)}, and {member.name} has {listing(own)}. Labels are matched by name, so "
        "these must be the same"
    )
    # Whether an unnamed class is the one at the same place, only the user can know.
    if origin is not None and is_generic(own) != is_generic(names):
        raise ValueError(f"{message}; in Python, label_names=[...] says in which order unnamed ones stand.")
    try:
        places = align_labels(names, {name: index for index, name in enumerate(own)})
    except ValueError as error:
        raise ValueError(f"{message}.") from error
    if sorted(places) != list(range(len(own))):
        raise ValueError(f"{message}.")
    return places
