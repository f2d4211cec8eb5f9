"""Loading a user's own files."""

from __future__ import annotations

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from modeling_hire.data.arguments import DataArguments
from modeling_hire.data.loading import load_task_data


CLASSES = [{"text": "a", "label": "no"}, {"text": "b", "label": "yes"}, {"text": "c", "label": "no"}]


def load(*args, evaluation_only=False, label_names=None, **kwargs):
    return load_task_data(DataArguments(*args, **kwargs), evaluation_only, label_names=label_names)


def test_strings_become_classes_with_sorted_names(write):
    data = load(train_file=write("mine.jsonl", CLASSES), validation_file=write("val.csv", "text,label\nd,yes\n"))
    assert data.spec.label_names == ("no", "yes")
    assert (data.spec.name, data.spec.metrics, data.spec.main_metric) == ("mine", ("accuracy", "f1_macro"), "accuracy")
    assert data.train.to_dict() == {"text": ["a", "b", "c"], "label": [0, 1, 0], "idx": [0, 1, 2]}
    assert data.evaluation["validation"].to_dict() == {"text": ["d"], "label": [1], "idx": [0]}
    assert data.test == {}
    assert any("2 classes" in note and "'no', 'yes'" in note for note in data.notes)


def test_floats_become_scores_and_whole_validation_scores_stay_scores(write):
    train = write("t.csv", "sentence1,sentence2,score\na,b,1.5\nc,d,2\n")
    data = load(train_file=train, validation_file=write("v.csv", "sentence1,sentence2,score\ne,f,3\n"))
    assert data.spec.is_regression
    assert (data.spec.metrics, data.spec.main_metric) == (("pearson", "spearman"), "combined_score")
    assert data.train.to_dict() == {"text": ["a", "c"], "text_pair": ["b", "d"], "label": [1.5, 2.0], "idx": [0, 1]}
    assert data.evaluation["validation"]["label"][:] == [3.0]


def test_whole_floats_are_scores_and_the_user_is_told(write):
    data = load(train_file=write("t.csv", "text,label\na,1.0\nb,0.0\n"))
    assert data.spec.is_regression
    assert any("taken as scores (regression)" in note for note in data.notes)


def test_whole_number_classes_in_training_meet_whole_floats_in_validation(write):
    data = load(
        train_file=write("t.csv", "text,label\na,1\nb,0\n"),
        validation_file=write("v.csv", "text,label\na,1.0\nb,0.0\n"),
    )
    assert data.spec.label_names == ("0", "1")
    assert data.evaluation["validation"]["label"][:] == [1, 0]


def test_minus_one_may_be_a_class_of_ones_own(write):
    data = load(train_file=write("t.jsonl", [{"text": t, "label": n} for t, n in (("a", -1), ("b", 1), ("c", 0))]))
    assert data.spec.label_names == ("-1", "0", "1")
    assert data.train["label"][:] == [0, 2, 1]


def test_parquet_classes_go_by_name(tmp_path, write):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["yes", "no"])})
    Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features).to_parquet(tmp_path / "t.parquet")
    data = load(
        train_file=str(tmp_path / "t.parquet"), validation_file=write("v.jsonl", [{"text": "c", "label": "no"}])
    )
    assert data.spec.label_names == ("no", "yes")
    assert data.train["label"][:] == [1, 0]
    assert data.evaluation["validation"]["label"][:] == [0]


@pytest.mark.parametrize("test", ["text\na\nb\n", "text,label\na,-1\nb,-1\n", "text,label\na,\nb,\n"])
def test_a_test_file_may_hide_its_labels(write, test):
    data = load(train_file=write("t.jsonl", CLASSES), test_file=write("test.csv", test))
    assert data.test["test"].column_names == ["text", "idx"]


def test_a_test_file_with_labels_keeps_them(write):
    data = load(train_file=write("t.jsonl", CLASSES), test_file=write("test.jsonl", CLASSES[:2]))
    assert data.test["test"]["label"][:] == [0, 1]


def test_row_ids_of_ones_own(write):
    rows = [{"text": "a", "label": "x", "idx": 7}, {"text": "b", "label": "y", "idx": 3}]
    assert load(train_file=write("t.jsonl", rows)).train["idx"][:] == [7, 3]
    assert load(train_file=write("t.csv", "idx,text,label\n7,a,x\n3,b,y\n")).train["idx"][:] == [7, 3]
    rows[1]["idx"] = 7
    assert load(train_file=write("u.jsonl", rows)).train["idx"][:] == [0, 1]


# ---- columns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header, texts, label",
    [
        ("text,label", ("text",), "label"),
        ("Sentence,Label", ("Sentence",), "Label"),
        ("idx,premise,hypothesis,label", ("premise", "hypothesis"), "label"),
        ("question,sentence,label", ("question", "sentence"), "label"),
        ("comment,target", ("comment",), "target"),
        ("text,label,score", ("text",), "label"),
    ],
)
def test_columns_are_found(write, header, texts, label):
    cells = {"idx": "0", "score": "5"}
    rows = [
        ",".join(y if name == label else cells.get(name, "words") for name in header.split(",")) for y in ("p", "n")
    ]
    spec = load(train_file=write("t.csv", "\n".join([header, *rows]))).spec
    assert (spec.text_columns, spec.label_column) == (texts, label)


def test_columns_can_be_named(write):
    path = write("t.csv", "a,b,c,d\nu,v,w,1\nx,y,z,0\n")
    data = load(train_file=path, text_column="b", text_pair_column="a", label_column="d")
    assert data.train.to_dict() == {"text": ["v", "y"], "text_pair": ["u", "x"], "label": [1, 0], "idx": [0, 1]}
    assert any("not used: 'c'" in note for note in data.notes)


@pytest.mark.parametrize(
    "text, kwargs, message",
    [
        ("a,b,label\nu,v,1\nx,y,0\n", {}, r"several columns may be the text \('a', 'b'\); give text_column"),
        ("text,sentence,label\nu,v,1\nx,y,0\n", {}, r"several columns may be the text \('text', 'sentence'\)"),
        ("premise,hypothesis,text1,text2,label\na,b,c,d,1\n", {}, "several columns may be the text"),
        ("label\n1\n0\n", {}, "no column holds text; give text_column"),
        ("text,thing\na,1\n", {}, "no column looks like the label; give label_column, one of 'text', 'thing'"),
        ("text,class,score\na,1,2\n", {}, r"several columns may be the label \('class', 'score'\)"),
        ("text,label\na,1\n", {"label_column": "lable"}, r"no column 'lable'.*Did you mean 'label'\?"),
        ("text,label\na,1\n", {"text_column": "txt"}, r"no column 'txt'; its columns are 'text', 'label'.*'text'\?"),
        ("text,label\na,1\n", {"text_column": "text", "text_pair_column": "b"}, "no column 'b'"),
    ],
)
def test_unclear_columns(write, text, kwargs, message):
    with pytest.raises(ValueError, match=message):
        load(train_file=write("t.csv", text), **kwargs)


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, shown", [(None, r"None \(NoneType\)"), (5, r"5 \(int\)"), (["a"], r"\['a'\] \(list\)")]
)
def test_text_that_is_no_text(write, value, shown):
    rows = [*CLASSES, {"text": value, "label": "no"}]
    with pytest.raises(ValueError, match=rf"t.jsonl, row 4: column 'text' holds {shown} where text should be"):
        load(train_file=write("t.jsonl", rows), text_column="text")


def test_validation_problems_name_the_validation_file(write):
    train = write("t.jsonl", CLASSES)
    with pytest.raises(
        ValueError, match="v.jsonl, row 1 has the label 'maybe', which the training data does not have"
    ):
        load(train_file=train, validation_file=write("v.jsonl", [{"text": "a", "label": "maybe"}]))
    with pytest.raises(ValueError, match="v.jsonl has no column 'text'"):
        load(train_file=train, validation_file=write("v.jsonl", [{"txt": "a", "label": "no"}]))
    with pytest.raises(ValueError, match="v.jsonl has no column 'label'"):
        load(train_file=train, validation_file=write("v.jsonl", [{"text": "a"}]))
    with pytest.raises(ValueError, match=r"v.jsonl, row 2 has no label \(None\)"):
        load(train_file=train, validation_file=write("v.jsonl", [CLASSES[0], {"text": "a"}]))
    with pytest.raises(ValueError, match="v.jsonl is empty"):
        load(train_file=train, validation_file=write("v.jsonl", ""))
    scores = write("s.jsonl", [{"text": "a", "label": 0.5}, {"text": "b", "label": 1.5}])
    with pytest.raises(ValueError, match="v.jsonl, row 1 holds 'no' where a score should be"):
        load(train_file=scores, validation_file=write("v.jsonl", CLASSES))
    with pytest.raises(ValueError, match="v.jsonl, row 1 holds nan where a score should be"):
        load(train_file=scores, validation_file=write("v.jsonl", '{"text": "a", "label": NaN}'))


def test_a_test_file_with_some_labels_missing(write):
    with pytest.raises(ValueError, match="test.csv, row 2 has no label"):
        load(train_file=write("t.jsonl", CLASSES), test_file=write("test.csv", "text,label\na,no\nb,\n"))


def test_missing_files(write, tmp_path):
    with pytest.raises(ValueError, match="train_file=None: there is nothing to train on"):
        load(validation_file=write("v.jsonl", CLASSES))
    with pytest.raises(ValueError, match="nothing to evaluate or predict on"):
        load(train_file=write("t.jsonl", CLASSES), evaluation_only=True)
    with pytest.raises(ValueError, match="gone.csv' does not exist"):
        load(train_file=str(tmp_path / "gone.csv"))


# ---- evaluating a trained model -------------------------------------------------------------------------------------


def test_evaluation_only_still_takes_the_classes_of_the_training_file(write):
    val = write("v.jsonl", [{"text": "c", "label": "yes"}])
    data = load(train_file=write("t.jsonl", CLASSES), validation_file=val, evaluation_only=True)
    assert data.train is None
    assert data.spec.label_names == ("no", "yes")
    assert data.evaluation["validation"]["label"][:] == [1]


def test_the_models_label_names_rule(write):
    val = write("v.jsonl", [{"text": "c", "label": "no"}, {"text": "c", "label": "yes"}])
    names = ("yes", "no", "maybe")
    data = load(validation_file=val, evaluation_only=True, label_names=names)
    assert data.spec.label_names == names
    assert data.evaluation["validation"]["label"][:] == [1, 0]
    with pytest.raises(ValueError, match="row 1 has the label 'no', which the model does not have"):
        load(validation_file=val, evaluation_only=True, label_names=("good", "bad"))
    assert load(validation_file=val, evaluation_only=True, label_names=("LABEL_0", "LABEL_1")).spec.label_names == (
        "no",
        "yes",
    )


def test_a_model_of_scores_reads_whole_numbers_as_scores(write):
    val = write("v.csv", "text,label\na,3\nb,5\n")
    data = load(validation_file=val, evaluation_only=True, label_names=())
    assert data.spec.is_regression
    assert data.evaluation["validation"]["label"][:] == [3.0, 5.0]


def test_predicting_without_any_labels_needs_the_models_names(write):
    test = write("test.csv", "text\na\nb\n")
    with pytest.raises(ValueError, match="test.csv has no labels, so the classes are not known"):
        load(test_file=test, evaluation_only=True)
    data = load(test_file=test, evaluation_only=True, label_names=("no", "yes"))
    assert data.test["test"]["text"][:] == ["a", "b"]


# ---- caps -----------------------------------------------------------------------------------------------------------


def rows_of(cap, seed, write):
    rows = [{"text": f"t{i}", "label": "ab"[i % 2]} for i in range(30)]
    return load(train_file=write("t.jsonl", rows), max_train_samples=cap, sample_seed=seed).train["text"][:]


def test_a_cap_keeps_a_seeded_subset_in_order(write):
    kept = rows_of(10, 0, write)
    numbers = [int(text[1:]) for text in kept]
    assert len(kept) == 10 and numbers == sorted(numbers) and numbers != list(range(10))
    assert kept == rows_of(10, 0, write)
    assert kept != rows_of(10, 1, write)
    assert set(rows_of(5, 0, write)) < set(kept)
    assert rows_of(30, 0, write) == rows_of(99, 0, write) == rows_of(None, 5, write) == [f"t{i}" for i in range(30)]


def test_each_kind_of_split_has_its_cap_and_the_user_is_told(write):
    path = write("t.jsonl", CLASSES)
    data = load(
        train_file=path,
        validation_file=path,
        test_file=path,
        max_train_samples=3,
        max_eval_samples=2,
        max_predict_samples=1,
    )
    assert (len(data.train), len(data.evaluation["validation"]), len(data.test["test"])) == (3, 2, 1)
    capped = [note for note in data.notes if "keeps" in note]
    assert len(capped) == 2
    assert any("max_eval_samples keeps 2 of 3 rows (sample_seed 0)" in note for note in capped)


def test_a_cap_does_not_hide_the_classes(write):
    data = load(train_file=write("t.jsonl", CLASSES), max_train_samples=1)
    assert data.spec.label_names == ("no", "yes")


def test_a_trained_models_classes_need_not_all_occur_in_more_training_data(write):
    train, validation = write("t.jsonl", CLASSES), write("v.jsonl", [{"text": "d", "label": "maybe"}])
    data = load(train_file=train, validation_file=validation, label_names=("maybe", "no", "yes"))
    assert data.evaluation["validation"]["label"][:] == [0]


def test_scores_that_are_all_the_same_are_refused(write):
    with pytest.raises(ValueError, match="t.csv holds only one score, 1.5: there is nothing to learn"):
        load(train_file=write("t.csv", "text,label\na,1.5\nb,1.5\n"))


@pytest.mark.parametrize("value", ["1e30", "-2.5e200"])
def test_a_score_whose_square_is_too_large_is_refused(write, value):
    with pytest.raises(ValueError, match=f"t.csv, row 2 holds the score '{value}': at most 1e\\+18 can be learned"):
        load(train_file=write("t.csv", f"text,label\na,1.5\nb,{value}\n"))


def test_rows_without_text_are_told(write):
    data = load(train_file=write("t.csv", 'text,label\n"  ",a\nw,b\n,b\n'))
    assert any("t.csv: 2 of 3 rows have no text but blanks." in note for note in data.notes)


def test_rows_with_one_text_of_a_pair_have_text(write):
    data = load(train_file=write("t.csv", "text1,text2,label\n,x,a\nw,,b\n"))
    assert not any("blanks" in note for note in data.notes)
