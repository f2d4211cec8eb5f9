"""Class names, scores and the match between a dataset's ids and a model's."""

from __future__ import annotations

import pytest

from modeling_hire.data.labels import align_labels, find_class_names, is_generic, own_labels, to_dataset_ids
from modeling_hire.data.tasks import get_task


MNLI = get_task("mnli").label_names


@pytest.mark.parametrize(
    "values, typed, names",
    [
        (["b", "a", "b "], True, ("a", "b")),
        ([10, 2, 1], True, ("1", "2", "10")),
        ([-1, 1, 0], True, ("-1", "0", "1")),
        ([True, False], True, ("False", "True")),
        ([1.5, 2, 3.0], True, None),
        ([1.0, 0.0], True, None),
        (["1.5", "2"], True, ("1.5", "2")),
        (["10", "2", " 1"], False, ("1", "2", "10")),
        (["1.5", "2", "3e-1"], False, None),
        (["1.0", "0.0"], False, None),
        (["none", "favor", "against"], False, ("against", "favor", "none")),
        (["1", "2", "3 or more"], False, ("1", "2", "3 or more")),
    ],
)
def test_what_a_label_column_holds(values, typed, names):
    assert find_class_names(values, typed, "f") == names


@pytest.mark.parametrize(
    "values, typed, message",
    [
        ([1, None, 0], True, r"f, row 2 has no label \(None\)"),
        ([1, float("nan"), 0], True, r"row 2 has no label \(nan\)"),
        (["a", "", "b"], False, r"row 2 has no label \(''\)"),
        (["1", "0", "nan"], False, r"row 3 has no label \('nan'\)"),
        ([1.5, None], True, "row 2 holds None where a score should be"),
        ([1.5, 2.5, "n/a"], True, "row 3 holds 'n/a' where a score should be"),
        (["1.5", "2.5", "NaN"], False, "row 3 holds 'NaN' where a score should be"),
        (["1.5", "oops", "2.5"], False, "row 2 holds 'oops' where a score should be"),
        (["a", "b", "2.5"], False, "mixes labels of different kinds: '2.5' in row 3 and 'a' in row 1"),
        (["a", 1, "b"], True, "mixes labels of different kinds: 1 in row 2 and 'a' in row 1"),
        ([True, 0], True, "mixes labels of different kinds"),
        ([[1], [2]], True, r"row 1 holds \[1\] \(list\) where a label"),
        (["a", "a"], True, "only one class, 'a'"),
        (["a\tb", "c"], True, "must not hold tabs"),
        ([str(i) for i in range(30)], False, "each of the 30 rows has a label of its own"),
    ],
)
def test_label_columns_that_make_no_sense(values, typed, message):
    with pytest.raises(ValueError, match=message):
        find_class_names(values, typed, "f")


def test_whole_floats_stand_for_whole_number_classes():
    # A data frame writes 0 and 1 as 0.0 and 1.0 once its column had a hole.
    assert own_labels(["1.0", "0", "1"], ("0", "1"), False, "f", "the training data") == [1, 0, 1]
    assert own_labels([1.0, 0], ("0", "1"), True, "f", "the training data") == [1, 0]


def test_scores_may_be_whole_numbers():
    assert own_labels(["4", "3.5"], None, False, "f", "-") == [4.0, 3.5]
    assert own_labels([4, 3.5], None, True, "f", "-") == [4.0, 3.5]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "4.5", True])
def test_what_is_no_score(value):
    with pytest.raises(ValueError, match=r"f, row 2 holds .* where a score should be"):
        own_labels([1.0, value], None, True, "f", "-")


def test_a_class_that_training_never_saw():
    message = r"f, row 2 has the label 'postive', which the training data does not have.*Did you mean 'positive'\?"
    with pytest.raises(ValueError, match=message):
        own_labels(["negative", "postive"], ("negative", "positive"), True, "f", "the training data")


@pytest.mark.parametrize(
    "label2id, expected",
    [
        ({"entailment": 0, "neutral": 1, "contradiction": 2}, [0, 1, 2]),
        ({"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}, [2, 1, 0]),
        ({"contradiction": 0, "entailment": 1, "neutral": 2}, [1, 2, 0]),
        ({"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}, [0, 1, 2]),
    ],
)
def test_align_labels(label2id, expected):
    assert align_labels(MNLI, label2id) == expected


def test_align_labels_sees_through_spelling_but_never_merges():
    assert align_labels(("entailment", "not_entailment"), {"Not Entailment": 0, "Entailment": 1}) == [1, 0]
    assert align_labels(("a", "A"), {"A": 0, "a": 1}) == [1, 0]
    with pytest.raises(ValueError, match="are not those of the model"):
        align_labels(("a", "b"), {"A": 0, "a": 1})


def test_align_labels_errors():
    with pytest.raises(
        ValueError, match=r"'entailment', 'neutral', 'contradiction'\) are not those of the model \('a', 'b', 'c'"
    ):
        align_labels(MNLI, {"a": 0, "b": 1, "c": 2})
    with pytest.raises(ValueError, match=r"more labels \(3: 'entailment'.*than the model \(2: 'LABEL_0', 'LABEL_1'\)"):
        align_labels(MNLI, {"LABEL_0": 0, "LABEL_1": 1})
    with pytest.raises(ValueError, match="are not those of the model"):
        align_labels(("a", "b"), {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2})
    with pytest.raises(ValueError, match="a regression task has none"):
        align_labels((), {"LABEL_0": 0})


def test_to_dataset_ids_undoes_the_alignment():
    alignment = align_labels(MNLI, {"contradiction": 0, "entailment": 1, "neutral": 2})
    assert to_dataset_ids([alignment[i] for i in (0, 2, 1)], alignment) == [0, 2, 1]
    with pytest.raises(ValueError, match=r"Class ids \[7\] are not among"):
        to_dataset_ids([7], alignment)


def test_generic_names():
    assert is_generic(["LABEL_0", "LABEL_1"])
    assert not is_generic([])
    assert not is_generic(["LABEL_0", "yes"])
