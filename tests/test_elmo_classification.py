"""ELMo's classifier of texts and pairs: against a naive one, invariances, losses, training, the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_elmo import CLIPPED, FUSED, TEXTS, elmo_batch, elmo_tokenizer, tiny_elmo, tiny_elmo_config
from tiny_models import assert_same, gradients
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments, pipeline

from modeling_hire.modeling_elmo import ElmoForPreTraining, ElmoForSequenceClassification, ElmoModel
from modeling_hire.modeling_elmo_matching import attend, mean_and_maximum


PAIRS = [(TEXTS[0], TEXTS[3]), (TEXTS[1], TEXTS[0]), (TEXTS[2], TEXTS[1]), (TEXTS[3], "")]


def classifier(**overrides: Any) -> ElmoForSequenceClassification:
    return tiny_elmo(ElmoForSequenceClassification, **({"num_labels": 3} | overrides))


@torch.no_grad()
def naive_logits(model: ElmoForSequenceClassification, *texts: str) -> torch.Tensor:
    """One text or pair, token by token."""
    matcher = model.matcher
    sides = [
        torch.relu(matcher.encode(model.elmo(**elmo_batch(text)).last_hidden_state[0])) if text else torch.zeros(0, 7)
        for text in (*texts, "")[:2]
    ]
    pooled = []
    for own, other in (sides, sides[::-1]):
        compared = []
        for token in own:
            weights = torch.stack([token @ x / 7**0.5 for x in other]).softmax(0) if len(other) else []
            found = sum((w * x for w, x in zip(weights, other, strict=True)), start=torch.zeros(7))
            features = torch.cat([token, found, token - found, token * found])
            compared.append(torch.relu(matcher.compare.weight @ features + matcher.compare.bias))
        compared = torch.stack(compared) if compared else torch.zeros(1, 7)
        pooled += [compared.mean(dim=0), compared.amax(dim=0)]
    return model.classifier(torch.tanh(matcher.dense(torch.cat(pooled))))


@pytest.mark.parametrize("side", ["right", "left"])
def test_equals_a_naive_one(side: str) -> None:
    model = classifier()
    for texts in ([(text,) for text in TEXTS], PAIRS):
        rows = [pair if len(pair) > 1 else pair[0] for pair in texts]
        with torch.no_grad():
            logits = model(**elmo_batch(*rows, side=side)).logits
        expected = torch.stack([naive_logits(model, *pair) for pair in texts])
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    assert logits.std() > 1e-2


@pytest.mark.parametrize("settings", [CLIPPED, FUSED], ids=["clipped", "fused"])
@torch.no_grad()
def test_padding_order_and_size(settings: dict[str, Any]) -> None:
    model = classifier(**settings)
    alone = torch.cat([model(**elmo_batch(pair)).logits for pair in PAIRS])
    batch = elmo_batch(*PAIRS, pad_to_multiple_of=23)
    torch.testing.assert_close(model(**batch).logits, alone, atol=1e-5, rtol=0)
    order = torch.tensor([2, 3, 1, 0])
    turned = {name: value[order] for name, value in batch.items()}
    torch.testing.assert_close(model(**turned).logits, alone[order], atol=1e-5, rtol=0)


def test_the_two_texts_have_their_places() -> None:
    model = classifier()
    one, other = (model(**elmo_batch(pair)).logits for pair in (PAIRS[0], PAIRS[0][::-1]))
    assert (one - other).abs().max() > 1e-3


def test_attention_by_hand() -> None:
    states = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [9.0, 9.0]]])
    first, second = torch.tensor([[True, False, False, False]]), torch.tensor([[False, True, True, False]])
    found = attend(states, first, second)[0]
    weights = torch.tensor([0.0, 3.0 / 2**0.5]).softmax(0)
    torch.testing.assert_close(found[0], torch.tensor([3.0 * weights[1], 2.0 * weights[0]]))
    assert found[1].tolist() == found[2].tolist() == [1.0, 0.0] and not found[3].any()
    mean, maximum = mean_and_maximum(states, second)
    assert mean.tolist() == [[1.5, 1.0]] and maximum.tolist() == [[3.0, 2.0]]
    assert all(not value.any() for value in mean_and_maximum(states, torch.zeros(1, 4, dtype=torch.bool)))


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"num_labels": 3}, torch.tensor([0, 2, 1, 1])),
        ({"num_labels": 1}, torch.tensor([0.5, 1.0, -2.0, 3.0])),
        ({"num_labels": 2}, torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])),
    ],
    ids=["class", "score", "several"],
)
def test_accumulated_batches_weigh_as_one(settings: dict[str, Any], labels: torch.Tensor) -> None:
    model, batch = classifier(**settings), elmo_batch(*PAIRS)
    model(**batch, labels=labels).loss.backward()
    whole = gradients(model)
    model.zero_grad()
    for row in range(4):
        part = {name: value[row : row + 1] for name, value in batch.items()}
        model(**part, labels=labels[row : row + 1], num_items_in_batch=labels.numel()).loss.backward()
    assert_same(gradients(model), whole, atol=1e-6)
    assert whole.keys() == dict(model.named_parameters()).keys()


def test_hidden_states_on_request() -> None:
    outputs = classifier()(**elmo_batch(*PAIRS), output_hidden_states=True)
    assert len(outputs.hidden_states) == 3
    assert set(classifier()(**elmo_batch(*PAIRS))) == {"logits"}


def test_starts_from_a_language_model(tmp_path: Path) -> None:
    source = tiny_elmo(ElmoForPreTraining, vocab_size=16)
    source.save_pretrained(tmp_path)
    model, info = ElmoForSequenceClassification.from_pretrained(tmp_path, num_labels=3, output_loading_info=True)
    assert_same(model.elmo.state_dict(), source.elmo.state_dict())
    assert {key.partition(".")[0] for key in info["missing_keys"]} == {"matcher", "classifier"}
    assert all(parameter.isfinite().all() and parameter.requires_grad for parameter in model.parameters())
    model.save_pretrained(tmp_path / "tuned")
    assert_same(ElmoModel.from_pretrained(tmp_path / "tuned").state_dict(), model.elmo.state_dict())


@pytest.mark.parametrize("clip", [1.0, None], ids=["clipped", "fused"])
def test_learns_which_pairs_share_their_words(tmp_path: Path, clip: float | None) -> None:
    tokenizer = elmo_tokenizer()
    words = ["cat", "dog", "mat", "sun", "tree", "ship"]
    rows = []
    for index, one in enumerate(words):
        for other, label in ((one, 1), (words[index - 1], 0), (one, 1), (words[index - 2], 0)):
            rows.append({**tokenizer(f"the {one} was here", f"a {other} is"), "labels": label})
    sizes = {"cell_size": 32, "projection_size": 16, "classifier_size": 32, "cell_clip": clip, "proj_clip": clip}
    model = ElmoForSequenceClassification(tiny_elmo_config(num_labels=2, **sizes))
    arguments = TrainingArguments(
        str(tmp_path),
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        learning_rate=3e-3,
        max_steps=80,
        per_device_train_batch_size=24,
    )
    trainer = Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer)
    )
    trainer.train()
    predictions = trainer.predict(rows)
    right = predictions.predictions.argmax(axis=1) == [row["labels"] for row in rows]
    assert right.mean() > 0.95 and predictions.metrics["test_loss"] < 0.3


def test_serves_the_pipeline() -> None:
    model, tokenizer = classifier(), elmo_tokenizer()
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer)
    answers = classify(list(TEXTS), batch_size=4, top_k=None)
    expected = model(**elmo_batch()).logits.softmax(dim=1)
    for answer, scores in zip(answers, expected, strict=True):
        found = {entry["label"]: entry["score"] for entry in answer}
        assert [found[f"LABEL_{i}"] for i in range(3)] == pytest.approx(scores.tolist(), abs=1e-5)
