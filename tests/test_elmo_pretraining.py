"""ELMo's language models: losses word by word, directions, the sampled softmax, accumulated batches, training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_elmo import CLIPPED, FUSED, TEXTS, elmo_batch, elmo_tokenizer, tiny_elmo
from tiny_models import assert_same, gradients
from torch.autograd import grad
from transformers import Trainer, TrainingArguments

from modeling_hire.modeling_elmo import ElmoForPreTraining, ElmoModel
from modeling_hire.modeling_elmo_softmax import WordSoftmax, inclusion_probabilities


WORDS = 16


def language_model(**overrides: Any) -> ElmoForPreTraining:
    return tiny_elmo(ElmoForPreTraining, vocab_size=WORDS, **overrides)


def lm_batch(*texts: str, **settings: Any):
    return elmo_batch(*texts, return_labels=True, **settings)


@torch.no_grad()
def naive_losses(model: ElmoForPreTraining, text: str) -> dict[str, list[float]]:
    """The loss of each prediction of a text, from the states of the bare model around each word."""
    tokenizer = elmo_tokenizer()
    row = tokenizer(text, return_labels=True)
    words = [2, *row["labels"]]
    # With a mark before and one after it, the beginning and the end are tokens like others to the bare model's inside.
    texts = model.elmo.read(torch.tensor([row["input_ids"]]))
    top = model.elmo.encoder(texts)[-1]
    softmax = {"forward": model.softmax, "backward": getattr(model, "backward_softmax", model.softmax)}
    losses: dict[str, list[float]] = {}
    for direction, order in (("forward", words), ("backward", words[::-1])):
        scores = softmax[direction](top[direction]).log_softmax(dim=1)
        losses[direction] = [-scores[i, order[i + 1]].item() for i in range(len(words) - 1)]
    return losses


@pytest.mark.parametrize("settings", [{}, {"share_softmax": False}, FUSED], ids=["shared", "own", "fused"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_losses_word_by_word(settings: dict[str, Any], side: str) -> None:
    model = language_model(**settings)
    outputs = model(**lm_batch(*TEXTS, side=side))
    for direction in ("forward", "backward"):
        expected = sum((naive_losses(model, text)[direction] for text in TEXTS), start=[])
        assert len(expected) == sum(len(elmo_tokenizer()(text)["input_ids"]) + 1 for text in TEXTS)
        assert outputs[f"{direction}_loss"].item() == pytest.approx(sum(expected) / len(expected), abs=1e-5)
    assert outputs.loss.item() == pytest.approx((outputs.forward_loss + outputs.backward_loss).item() / 2, abs=1e-6)
    assert set(outputs) == {"loss", "forward_loss", "backward_loss"}


def test_a_word_sees_only_its_side() -> None:
    model = language_model()
    one = model(**elmo_batch("The cat sat on the mat"))
    other = model(**elmo_batch("The cat lay on the mat"))
    same = torch.isclose(one.forward_logits, other.forward_logits, atol=1e-6).all(dim=2)[0]
    assert same.tolist() == [True] * 3 + [False] * 4
    same = torch.isclose(one.backward_logits, other.backward_logits, atol=1e-6).all(dim=2)[0]
    assert same.tolist() == [False] * 3 + [True] * 4


@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_lie_beside_what_they_predict(side: str) -> None:
    model = language_model()
    batch = lm_batch(*TEXTS, side=side)
    outputs = model(**batch, output_logits=True)
    mask, labels = batch["attention_mask"] != 0, batch["labels"]
    ones = torch.ones(len(TEXTS), 1, dtype=torch.bool)
    counted = labels != -100
    words = [labels[row][counted[row]] for row in range(len(TEXTS))]
    # Forwards a beginning stands before every text; backwards an end after it.
    for name, shown in (("forward", torch.cat([ones, mask], 1)), ("backward", torch.cat([mask, ones], 1))):
        logits = outputs[f"{name}_logits"]
        assert logits.shape == (len(TEXTS), labels.shape[1], WORDS)
        losses = []
        for row, right in enumerate(words):
            right = right if name == "forward" else torch.cat([torch.tensor([2]), right[:-1]])
            losses.append(torch.nn.functional.cross_entropy(logits[row][shown[row]], right, reduction="sum"))
        assert (sum(losses) / counted.sum()).item() == pytest.approx(outputs[f"{name}_loss"].item(), abs=1e-5)
        assert not logits[~shown].any()


class TestDirections:
    def test_one_alone_is_a_task_of_its_own(self) -> None:
        model, batch = language_model(share_softmax=False), lm_batch()
        both = model(**batch)
        for direction, other in (("forward", "backward"), ("backward", "forward")):
            model.zero_grad()
            outputs = model(**batch, directions=direction)
            assert set(outputs) == {"loss", f"{direction}_loss"}
            assert outputs.loss.item() == pytest.approx(both[f"{direction}_loss"].item(), abs=1e-6)
            outputs.loss.backward()
            touched = gradients(model)
            assert not any(other in name for name in touched)
            assert "elmo.encoder.characters.embedding.weight" in touched

    def test_their_gradients_add_up(self) -> None:
        model, batch = language_model(), lm_batch()
        model(**batch).loss.backward()
        joint = gradients(model)
        model.zero_grad()
        for direction in ("forward", "backward"):
            (model(**batch, directions=direction).loss / 2).backward()
        assert_same(gradients(model), joint, atol=1e-6)

    def test_state_is_kept_for_each(self) -> None:
        model, batch = language_model(stateful=True), lm_batch(TEXTS[0])
        joint = [model(**batch) for _ in range(2)]
        model.reset_states()
        for direction in ("forward", "backward"):
            for expected in joint:
                outputs = model(**batch, directions=direction)
                assert outputs.loss.item() == pytest.approx(expected[f"{direction}_loss"].item(), abs=1e-6)

    def test_every_trained_parameter_has_a_share(self) -> None:
        # What has none stops distributed training, so the mixture is frozen here, and only here.
        model = language_model(share_softmax=False)
        model(**lm_batch()).loss.backward()
        untouched = {name for name, parameter in model.named_parameters() if parameter.grad is None}
        assert untouched == {"elmo.mix.layer_scores", "elmo.mix.gamma"}
        assert not any(p.requires_grad for p in model.elmo.mix.parameters())


class TestLabels:
    def test_padding_never_counts(self) -> None:
        model, batch = language_model(), lm_batch()
        expected = model(**batch)
        labels = batch["labels"].clone()
        labels[labels == -100] = 5
        actual = model(**{**batch, "labels": labels})
        assert actual.loss.item() == pytest.approx(expected.loss.item(), abs=1e-6)

    def test_words_left_out(self) -> None:
        model, batch = language_model(), lm_batch(TEXTS[1])
        batch["labels"][0, 1] = -100
        losses = naive_losses(model, TEXTS[1])
        outputs = model(**batch)
        forward = [loss for index, loss in enumerate(losses["forward"]) if index != 1]
        assert outputs.forward_loss.item() == pytest.approx(sum(forward) / len(forward), abs=1e-5)
        backward = [loss for index, loss in enumerate(losses["backward"][::-1]) if index != 2]
        assert outputs.backward_loss.item() == pytest.approx(sum(backward) / len(backward), abs=1e-5)

    def test_nothing_to_predict(self) -> None:
        model, batch = language_model(), lm_batch(TEXTS[1])
        batch["labels"].fill_(-100)
        outputs = model(**batch)
        outputs.loss.backward()
        assert outputs.loss.item() == 0

    def test_empty_texts(self) -> None:
        outputs = language_model()(**lm_batch("", TEXTS[1]))
        assert outputs.loss.isfinite()

    @pytest.mark.parametrize(
        "settings", [{}, {"softmax": "sampled", "num_sampled_words": 15}], ids=["full", "sampled"]
    )
    def test_accumulated_batches_weigh_as_one(self, settings: dict[str, Any]) -> None:
        model, batch = language_model(**settings), lm_batch()
        count = (batch["labels"] != -100).sum()
        model(**batch).loss.backward()
        whole = gradients(model)
        model.zero_grad()
        for row in range(len(TEXTS)):
            part = {name: value[row : row + 1] for name, value in batch.items()}
            model(**part, num_items_in_batch=count).loss.backward()
        assert_same(gradients(model), whole, atol=1e-6)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"labels": torch.zeros(1, 3, dtype=torch.long)}, r"labels of shape \(1, 3\): .* here \(1, 4\)"),
            ({"labels": torch.full((1, 4), WORDS)}, r"labels from 16 to 16: allowed are word ids from 0 to 15"),
            ({"labels": torch.full((1, 4), -1)}, r"labels from -1 to -1"),
            ({"directions": "left"}, "directions='left': allowed is one of 'both', 'forward', 'backward'"),
            ({"token_type_ids": torch.tensor([[0, 0, 1]])}, "token_type_ids of pairs: allowed are single texts"),
            ({"directions": "forward", "output_hidden_states": True}, "allowed is directions='both'"),
        ],
    )
    def test_refuses(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            language_model()(**{**lm_batch(TEXTS[1]), **change})

    def test_needs_a_vocabulary(self) -> None:
        with pytest.raises(ValueError, match="vocab_size=None: allowed is the number of words"):
            tiny_elmo(ElmoForPreTraining)


class TestSampledSoftmax:
    def test_probabilities(self) -> None:
        for words, expected in ((1000, 100), (16, 15), (50, 1)):
            probabilities = inclusion_probabilities(words, expected)
            assert probabilities.sum().item() == pytest.approx(expected, abs=1e-6)
            assert (probabilities > 0).all() and (probabilities <= 1).all()
            assert (probabilities.diff() < 1e-12).all()

    def head(self, sampled: int, words: int = 60) -> WordSoftmax:
        config = language_model().config
        config.vocab_size, config.softmax, config.num_sampled_words = words, "sampled", sampled
        head = WordSoftmax(config).double()
        torch.nn.init.normal_(head.weight)
        torch.nn.init.normal_(head.bias)
        return head

    def test_evaluation_is_over_all_words(self) -> None:
        head, states, words = self.head(5), torch.randn(7, 6).double(), torch.arange(7)
        expected = torch.nn.functional.cross_entropy(states @ head.weight.t() + head.bias, words)
        torch.testing.assert_close(head.eval().loss(states, words), expected)

    def test_estimates_the_sum_over_all_words_without_bias(self) -> None:
        head, states, word = self.head(20), torch.randn(1, 6).double(), torch.tensor([3])
        scores = (states @ head.weight.t() + head.bias)[0]
        ratios = []
        for _ in range(3000):
            loss = head.loss(states, word)
            ratios.append((loss + scores[3] - scores.logsumexp(0)).exp().item())
        ratios = torch.tensor(ratios)
        assert ratios.std() > 0.05
        assert abs(ratios.mean() - 1) < 4 * ratios.std() / len(ratios) ** 0.5

    def test_approaches_the_full_loss_and_its_gradient(self) -> None:
        states, words = torch.randn(9, 6).double(), torch.randint(0, 60, (9,))
        head = self.head(59)
        head._inclusion = torch.ones(60, dtype=torch.float64)
        parameters = list(head.parameters())
        sampled, full = head.loss(states, words), torch.nn.functional.cross_entropy(head(states), words)
        torch.testing.assert_close(sampled, full)
        for one, other in zip(grad(sampled, parameters), grad(full, parameters), strict=True):
            torch.testing.assert_close(one, other)

    def test_a_seed_gives_the_same_and_words_are_drawn_anew(self) -> None:
        model, batch = language_model(softmax="sampled", num_sampled_words=4).train(), lm_batch()
        losses = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            losses.append(model(**batch).loss.item())
        assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("settings", [CLIPPED, FUSED], ids=["clipped", "fused"])
def test_an_inner_step_is_differentiable(settings: dict[str, Any]) -> None:
    """The gradient of a loss after a step of gradient descent, against finite differences."""
    model, rate = language_model(dtype=torch.float64, **settings), 0.1
    inner, outer = lm_batch(*TEXTS[:2]), lm_batch(*TEXTS[2:])
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    start = {name: p.detach().clone() for name, p in named.items()}

    def after_a_step(values: dict[str, torch.Tensor], create_graph: bool) -> torch.Tensor:
        run = torch.func.functional_call
        loss = run(model, values, (), dict(inner)).loss
        found = grad(loss, list(values.values()), create_graph=create_graph)
        moved = {name: value - rate * g for (name, value), g in zip(values.items(), found, strict=True)}
        return run(model, moved, (), dict(outer)).loss

    values = {name: value.clone().requires_grad_() for name, value in start.items()}
    exact = grad(after_a_step(values, True), list(values.values()))
    direction = {name: torch.randn_like(value) for name, value in start.items()}
    slope = sum((g * direction[name]).sum() for name, g in zip(values, exact, strict=True)).item()
    step, sides = 1e-6, []
    for sign in (1, -1):
        shifted = {name: (v + sign * step * direction[name]).requires_grad_() for name, v in start.items()}
        sides.append(after_a_step(shifted, False).item())
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5, abs=1e-6)


class TestTraining:
    def arguments(self, folder: Path, **settings: Any) -> TrainingArguments:
        quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
        fast = {"learning_rate": 2e-2, "max_steps": 30, "per_device_train_batch_size": 2, "logging_steps": 30}
        return TrainingArguments(str(folder), **(quiet | fast | settings))

    def trained(self, folder: Path, **settings: Any) -> tuple[Trainer, ElmoForPreTraining]:
        tokenizer = elmo_tokenizer()
        rows = [tokenizer(text, return_labels=True) for text in TEXTS]
        model = language_model(**settings.pop("model", {})).train()
        trainer = Trainer(
            model,
            self.arguments(folder, **settings),
            train_dataset=rows,
            eval_dataset=rows,
            data_collator=collate,
        )
        trainer.train()
        return trainer, model

    @pytest.mark.parametrize("kind", ["full", "sampled"])
    def test_learns_its_texts(self, tmp_path: Path, kind: str) -> None:
        sizes = {"cell_size": 32, "projection_size": 16}
        settings = {"softmax": kind, "num_sampled_words": 8, **sizes, **FUSED}
        before = language_model(**settings)(**lm_batch()).loss.item()
        trainer, _ = self.trained(tmp_path, model=settings, max_steps=60)
        after = trainer.evaluate()["eval_loss"]
        assert after < 0.6 * before

    def test_a_seed_gives_the_same(self, tmp_path: Path) -> None:
        settings = {"model": {"dropout": 0.2, "softmax": "sampled", "num_sampled_words": 8}, "max_steps": 4}
        one, other = (self.trained(tmp_path, **settings)[1].state_dict() for _ in range(2))
        assert_same(one, other)

    def test_the_bare_model_comes_out_of_it(self, tmp_path: Path) -> None:
        model = language_model()
        model.save_pretrained(tmp_path)
        bare, info = ElmoModel.from_pretrained(tmp_path, output_loading_info=True)
        assert not info["missing_keys"] and all(key.startswith("softmax.") for key in info["unexpected_keys"])
        assert all(parameter.requires_grad for parameter in bare.parameters())
        assert_same(bare.state_dict(), model.elmo.state_dict())


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return dict(elmo_tokenizer().pad(rows, return_tensors="pt"))


def test_continues_from_a_model_without_words(tmp_path: Path) -> None:
    # As converted original weights are: they hold neither a softmax nor a vocabulary.
    bare, tokenizer = tiny_elmo(), elmo_tokenizer()
    bare.save_pretrained(tmp_path)
    model, info = ElmoForPreTraining.from_pretrained(
        tmp_path, vocab_size=tokenizer.vocab_size, output_loading_info=True
    )
    assert info["missing_keys"] == {"softmax.weight", "softmax.bias"}
    assert_same(model.elmo.state_dict(), bare.state_dict())
    assert model(**lm_batch()).loss.isfinite()
    with pytest.raises(ValueError, match="vocab_size=None"):
        ElmoForPreTraining.from_pretrained(tmp_path)
