"""Ensembles of classifiers against a loop over members and texts, one unpadded text at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_ensembles import LABELS, Pair, classifiers, member, models_and_tokenizers, named, save
from tiny_models import tiny_batch, tiny_model, tiny_tokenizer
from tiny_spans import TEXTS, wordpiece

from modeling_hire.evaluation.ensembles import EnsembleClassifierOutput, EnsembleForSequenceClassification


PAIRS = tuple(reversed(TEXTS))


def spelled(name: str) -> str:
    return name.lower()


@torch.no_grad()
def slow(pairs: Sequence[Pair], *texts: str, max_length: int = 64) -> dict[str, float]:
    """The mean probability of each class by name; the members have positions for 64 tokens."""
    cut = {"truncation": True, "max_length": max_length}
    total = dict.fromkeys(LABELS, 0.0)
    for model, tokenizer in pairs:
        # Lists: of a single pair, the tokenizer drops a second text that is empty.
        logits = model(**tokenizer(*([text] for text in texts), return_tensors="pt", **cut)).logits[0]
        for index, probability in enumerate(logits.softmax(-1).tolist()):
            total[spelled(model.config.id2label[index])] += probability / len(pairs)
    return total


def outputs(ensemble: EnsembleForSequenceClassification) -> EnsembleClassifierOutput:
    return ensemble.run(ensemble.encode(TEXTS))


def predictions(pairs: Sequence[Pair], *args: Any, **kwargs: Any) -> list[dict[str, float]]:
    ensemble = EnsembleForSequenceClassification(*models_and_tokenizers(pairs))
    found = ensemble.predict(*args, **kwargs)
    assert all(one.label == max(one.probabilities, key=one.probabilities.get) for one in found)
    assert all(one.score == one.probabilities[one.label] for one in found)
    return [{spelled(name): value for name, value in one.probabilities.items()} for one in found]


@pytest.mark.parametrize("texts", [(TEXTS,), (TEXTS, PAIRS)], ids=["texts", "pairs"])
def test_against_one_text_at_a_time(texts: tuple[Sequence[str], ...]) -> None:
    pairs = classifiers()
    expected = [slow(pairs, *row) for row in zip(*texts, strict=True)]
    for batch_size in (1, 3, 50):
        found = predictions(pairs, *texts, batch_size=batch_size)
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def test_order_of_members_and_texts_does_not_matter() -> None:
    pairs = classifiers()
    expected = predictions(pairs, TEXTS)
    turned = predictions(pairs[::-1], TEXTS[::-1])
    for one, other in zip(turned[::-1], expected, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_checkpoints_are_as_models(tmp_path: Path) -> None:
    pairs = classifiers()
    folders = save(pairs, tmp_path)
    expected = outputs(EnsembleForSequenceClassification(*models_and_tokenizers(pairs)))
    found = outputs(EnsembleForSequenceClassification(folders))
    assert found.probabilities.allclose(expected.probabilities, atol=1e-6)
    mixed = EnsembleForSequenceClassification([folders[0], pairs[1][0], str(folders[2])], [None, pairs[1][1], None])
    assert outputs(mixed).member_logits.allclose(expected.member_logits, atol=1e-5)
    assert mixed.label_names == LABELS and len(mixed) == 3


@torch.no_grad()
def test_one_member_is_itself() -> None:
    for model, tokenizer in classifiers():
        ensemble = EnsembleForSequenceClassification([model], tokenizer)
        found = outputs(ensemble)
        expected = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in TEXTS])
        assert found.logits.float().allclose(expected, atol=1e-5)
        assert found.probabilities.float().allclose(expected.softmax(-1), atol=1e-6)
        twice = outputs(EnsembleForSequenceClassification([model, model], tokenizer))
        assert twice.logits.allclose(found.logits, atol=1e-6)


@torch.no_grad()
def test_tensors_and_their_padding() -> None:
    """One member takes no token types; nothing depends on how far a batch is padded."""
    kinds = {"bert": named(LABELS), "distilbert": named(LABELS[::-1]), "hire": named(LABELS)}
    models = [member(kind, tiny_tokenizer(), i, **names)[0].train() for i, (kind, names) in enumerate(kinds.items())]
    modes = [[module.training for module in model.modules()] for model in models]
    ensemble = EnsembleForSequenceClassification(models)
    batch = tiny_batch()
    types = torch.zeros_like(batch["input_ids"])
    output = ensemble(**batch, token_type_ids=types)
    assert [[module.training for module in model.modules()] for model in models] == modes

    for row, length in enumerate((9, 6, 4)):
        ids = batch["input_ids"][row : row + 1, :length]
        apart = [model.eval()(input_ids=ids).logits.softmax(-1)[0] for model in models]
        expected = (apart[0] + apart[1].flip(-1) + apart[2]) / 3
        assert output.probabilities[row].allclose(expected, atol=1e-5)
    assert output.logits.softmax(-1).allclose(output.probabilities, atol=1e-6)
    wide = ensemble(**tiny_batch(tokens=17))
    assert wide.probabilities.allclose(output.probabilities, atol=1e-5)
    assert not output.logits.requires_grad


@torch.no_grad()
def test_scores_are_averaged() -> None:
    tokenizer = wordpiece()
    models = [member(kind, tokenizer, 1, num_labels=1)[0] for kind in ("bert", "hire")]
    ensemble = EnsembleForSequenceClassification(models, tokenizer)
    assert ensemble.label_names is None
    for text, found in zip(TEXTS, ensemble.predict(TEXTS), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        assert found.score == pytest.approx(sum(model(**inputs).logits.item() for model in models) / 2, abs=1e-5)
        assert found.label is None and found.probabilities == {}


def test_long_texts_are_cut_to_what_each_member_takes() -> None:
    pairs = classifiers()  # positions for 64 tokens
    text, other = " ".join(TEXTS) * 3, "the tower"
    (found,) = predictions(pairs, [text])
    assert found == pytest.approx(slow(pairs, text), abs=1e-5)
    (found,) = predictions(pairs, [text], [other], max_length=20)
    assert found == pytest.approx(slow(pairs, text, other, max_length=20), abs=1e-5)


def test_one_text_or_several() -> None:
    model, tokenizer = classifiers()[0]
    ensemble = EnsembleForSequenceClassification([model], tokenizer)
    assert ensemble.predict(TEXTS[0]) == ensemble.predict([TEXTS[0]])[0]
    assert ensemble.predict(TEXTS[0], TEXTS[1]) == ensemble.predict([TEXTS[0]], [TEXTS[1]])[0]
    assert ensemble.predict([]) == []


# ---- labels ---------------------------------------------------------------------------------------------------------


def with_labels(*names: str) -> Any:
    return tiny_model("fast", **named(names))


def test_unnamed_labels() -> None:
    plain, named_model = with_labels("LABEL_0", "LABEL_1"), with_labels("yes", "no")
    assert EnsembleForSequenceClassification([plain, plain]).label_names == ("LABEL_0", "LABEL_1")
    ensemble = EnsembleForSequenceClassification([plain, named_model], label_names=["no", "yes"])
    assert ensemble.label_names == ("no", "yes")
    batch = tiny_batch()
    apart = [EnsembleForSequenceClassification([model])(**batch).probabilities for model in (plain, named_model)]
    expected = (apart[0] + apart[1].flip(-1)) / 2
    assert ensemble(**batch).probabilities.allclose(expected, atol=1e-6)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (("no", "yes"), ("no", "perhaps"), r"'no', 'yes'.*'no', 'perhaps'"),
        (("no", "yes"), ("no", "yes", "maybe"), r"'no', 'yes'.*'no', 'yes', 'maybe'"),
        (("no", "yes", "maybe"), ("no", "yes"), r"'no', 'yes', 'maybe'.*'no', 'yes'"),
        (("no", "yes"), ("LABEL_0", "LABEL_1"), "label_names="),
        (("LABEL_0", "LABEL_1"), ("no", "yes"), "label_names="),
        (("LABEL_0", "LABEL_1"), ("LABEL_0", "LABEL_1", "LABEL_2"), "must be the same"),
    ],
)
def test_different_labels(one: tuple[str, ...], other: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EnsembleForSequenceClassification([with_labels(*one), with_labels(*other)])


def test_kinds_that_do_not_mix() -> None:
    scorer, classifier = tiny_model("fast", num_labels=1), with_labels("no", "yes")
    for pair in ([scorer, classifier], [classifier, scorer]):
        with pytest.raises(ValueError, match=r"predicts (a score|classes) and .*(classes|a score)"):
            EnsembleForSequenceClassification(pair)
    with pytest.raises(ValueError, match="label_names=.*predict a score"):
        EnsembleForSequenceClassification([scorer], label_names=["no"])
    with pytest.raises(ValueError, match="label_names has 'a', 'b'"):
        EnsembleForSequenceClassification([classifier], label_names=["a", "b"])
    several = tiny_model("fast", num_labels=3, problem_type="multi_label_classification")
    with pytest.raises(ValueError, match="multi_label_classification"):
        EnsembleForSequenceClassification([several])
    with pytest.raises(ValueError, match="predicts 3 scores"):
        EnsembleForSequenceClassification([tiny_model("fast", num_labels=3, problem_type="regression")])


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((["a", "b"], ["c"]), {}, "2 of one and 1 of the other"),
        ((["a", None],), {}, "texts: holds None"),
        ((["a"], [3]), {}, "text_pairs: holds 3"),
        (("a", ["b", "c"]), {}, "as many of one as of the other"),
        ((["a"],), {"batch_size": 0}, "batch_size=0"),
        ((["a"],), {"max_length": True}, "max_length=True"),
        ((["a"],), {"max_length": 2}, "leaves no room"),
    ],
)
def test_wrong_texts(args: tuple, kwargs: dict[str, Any], said: str) -> None:
    model, tokenizer = classifiers()[0]
    with pytest.raises(ValueError, match=said):
        EnsembleForSequenceClassification([model], tokenizer).predict(*args, **kwargs)
