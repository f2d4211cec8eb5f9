"""GLUE's metrics against hand computation and scikit-learn, without a network and without files."""

from __future__ import annotations

import math
import socket
from pathlib import Path

import evaluate
import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics
from transformers import EvalPrediction

from modeling_hire.data.labels import align_labels
from modeling_hire.data.tasks import TASKS, get_task
from modeling_hire.evaluation.glue import METRICS, build_compute_metrics, load_metric, predicted_values


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(self, address):
        raise AssertionError(f"a test tried to connect to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def one(name, predictions, references):
    result = load_metric(name).compute(predictions=predictions, references=references)
    assert list(result) == [name] and type(result[name]) is float
    return result[name]


def logits(ids, num_labels=2):
    return np.eye(num_labels)[ids] * 3.0 - 1.0


def test_classification_metrics_by_hand():
    # 3 true positives, 1 false positive, 1 false negative, 2 true negatives.
    references, predictions = [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0]
    assert one("accuracy", predictions, references) == pytest.approx(5 / 7)
    assert one("f1", predictions, references) == pytest.approx(2 * 3 / (2 * 3 + 1 + 1))
    assert one("f1_macro", predictions, references) == pytest.approx((6 / 8 + 4 / 6) / 2)
    expected = (3 * 2 - 1 * 1) / math.sqrt((3 + 1) * (3 + 1) * (2 + 1) * (2 + 1))
    assert one("matthews_correlation", predictions, references) == pytest.approx(expected)


def test_correlations_by_hand():
    x, y = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 10.0]
    # Sums of products of the deviations: xy 13, xx 5, yy 50.
    assert one("pearson", x, y) == pytest.approx(13 / math.sqrt(5 * 50))
    # Ranks 1 3 2 4: 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15).
    assert one("spearman", x, y) == pytest.approx(0.8)


def test_against_the_libraries_on_random_numbers():
    rng = np.random.default_rng(0)
    references, predictions = rng.integers(0, 3, 200), rng.integers(0, 3, 200)
    assert one("accuracy", predictions, references) == sklearn_metrics.accuracy_score(references, predictions)
    assert one("matthews_correlation", predictions, references) == pytest.approx(
        sklearn_metrics.matthews_corrcoef(references, predictions)
    )
    x = rng.normal(size=200)
    y = x + rng.normal(size=200)
    assert one("pearson", x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)
    assert one("spearman", x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("x, y", [([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]), ([1.0, 2.0], [5.0, 5.0]), ([1.0], [2.0])])
def test_constant_scores_have_correlation_zero_and_no_warning(name, x, y, recwarn):
    assert one(name, x, y) == 0.0
    assert not recwarn.list


@pytest.mark.parametrize("name", ["f1", "f1_macro", "matthews_correlation"])
def test_constant_classes_give_a_number_and_no_warning(name, recwarn):
    assert one(name, [0, 0, 0], [0, 1, 0]) == pytest.approx({"f1_macro": 0.4}.get(name, 0.0))
    assert not recwarn.list


def test_scores_keep_double_precision():
    rng = np.random.default_rng(1)
    x = 1e6 + rng.normal(size=50)
    assert one("pearson", x, x + 1e-3 * rng.normal(size=50)) > 0.99


def test_unknown_metric():
    with pytest.raises(ValueError, match=r"metric='acuracy' is not known.*Did you mean 'accuracy'\?"):
        load_metric("acuracy")


@pytest.mark.parametrize("name", METRICS)
def test_they_are_evaluate_metrics_that_write_no_files(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metric = METRICS[name](cache_dir=str(tmp_path / "cache"))
    assert isinstance(metric, evaluate.Metric)
    metric.add_batch(predictions=[1, 0], references=[1, 1])
    metric.add(prediction=0, reference=0)
    assert name in metric.compute()
    assert list(tmp_path.iterdir()) == []


def test_default_cache_folder_is_not_made(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "home"))
    assert one("accuracy", [1], [1]) == 1.0
    assert not (tmp_path / "home").exists()


def test_they_combine():
    combined = evaluate.combine([load_metric("accuracy"), load_metric("f1")])
    assert combined.compute(predictions=[1, 0], references=[1, 1]) == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}


def test_a_metric_can_be_used_again_and_many_at_once():
    first, second = load_metric("accuracy"), load_metric("accuracy")
    first.add_batch(predictions=[1], references=[0])
    second.add_batch(predictions=[1], references=[1])
    assert (first.compute(), second.compute()) == ({"accuracy": 0.0}, {"accuracy": 1.0})
    assert first.compute(predictions=[1], references=[1]) == {"accuracy": 1.0}


# ---- for the Trainer ------------------------------------------------------------------------------------------------


def test_classification_takes_the_largest_logit():
    compute = build_compute_metrics(get_task("mrpc"))
    scores = compute(EvalPrediction(logits([1, 1, 0, 1]), np.array([1, 0, 0, 1])))
    assert scores == {"accuracy": 0.75, "f1": 0.8, "combined_score": pytest.approx(0.775)}


def test_a_single_metric_has_no_combined_score():
    assert build_compute_metrics(get_task("cola"))(EvalPrediction(logits([1, 0]), np.array([1, 0]))) == {
        "matthews_correlation": 1.0
    }


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_regression_takes_the_score(shape):
    x, y = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32), np.array([1.0, 3.0, 2.0, 10.0], dtype=np.float32)
    scores = build_compute_metrics(get_task("stsb"))(EvalPrediction(x.reshape(shape), y))
    pearson = 13 / math.sqrt(5 * 50)
    assert scores == pytest.approx({"pearson": pearson, "spearman": 0.8, "combined_score": (pearson + 0.8) / 2})


def test_of_a_tuple_the_first_counts():
    extra = np.zeros((2, 7))
    compute = build_compute_metrics(get_task("rte"))
    assert compute(EvalPrediction((logits([1, 0]), extra), np.array([1, 0])))["accuracy"] == 1.0


def test_constant_predictions_give_zero_for_stsb():
    scores = build_compute_metrics(get_task("stsb"))(EvalPrediction(np.full((3, 1), 2.5), np.array([1.0, 2.0, 3.0])))
    assert scores == {"pearson": 0.0, "spearman": 0.0, "combined_score": 0.0}


def test_permuted_labels_give_the_same_scores():
    spec = get_task("mnli")
    gold, predicted = np.array([0, 1, 2, 2, 1, 0]), np.array([0, 1, 2, 0, 1, 2])
    alignment = align_labels(spec.label_names, {"CONTRADICTION": 0, "ENTAILMENT": 1, "NEUTRAL": 2})
    to_model = np.array(alignment)
    compute = build_compute_metrics(spec, alignment)
    permuted = compute(EvalPrediction(logits(to_model[predicted], 3), to_model[gold]))
    assert permuted == build_compute_metrics(spec)(EvalPrediction(logits(predicted, 3), gold))


def test_f1_follows_the_datasets_positive_class_when_the_model_swaps_labels():
    spec = get_task("mrpc")
    gold, predicted = np.array([1, 0, 0, 0]), np.array([1, 1, 0, 0])
    swapped = build_compute_metrics(spec, [1, 0])(EvalPrediction(logits(1 - predicted), 1 - gold))
    assert swapped == build_compute_metrics(spec)(EvalPrediction(logits(predicted), gold))
    assert swapped["f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_scores_perfect_predictions(task):
    spec = TASKS[task]
    gold = np.arange(6) % 5 * 1.0 if spec.is_regression else np.arange(6) % spec.num_labels
    output = gold[:, None] if spec.is_regression else logits(gold, spec.num_labels)
    scores = build_compute_metrics(spec)(EvalPrediction(output, gold))
    assert spec.main_metric in scores
    assert all(value == pytest.approx(1.0) for value in scores.values())


def test_diverged_models_are_reported():
    broken = logits([1, 0, 1])
    broken[1, 0] = np.nan
    with pytest.raises(ValueError, match="1 of 3 predictions are not finite numbers: the model has diverged"):
        predicted_values(broken, get_task("rte"))
    with pytest.raises(ValueError, match="2 of 3 predictions are not finite"):
        predicted_values(np.array([np.inf, 1.0, np.nan]), get_task("stsb"))


def test_wrong_shapes_are_reported():
    with pytest.raises(ValueError, match=r"Predictions of stsb have shape \(3, 2\): expected one score a row"):
        predicted_values(np.zeros((3, 2)), get_task("stsb"))
    with pytest.raises(ValueError, match=r"Predictions of rte have shape \(3,\): expected \(rows, labels\)"):
        predicted_values(np.zeros(3), get_task("rte"))
    with pytest.raises(ValueError, match="There are 2 predictions for 3 labels"):
        build_compute_metrics(get_task("rte"))(EvalPrediction(np.zeros((2, 2)), np.zeros(3)))


def test_nothing_is_written_beside_the_code():
    folder = Path(evaluate.__file__).parent
    before = {path.name for path in folder.iterdir()}
    one("spearman", [1.0, 2.0], [2.0, 1.0])
    assert {path.name for path in folder.iterdir()} == before
