"""ELMo's bare model: against a naive one, invariance to padding and batching, state, mixture, inputs, saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_elmo_lstm import one_by_one
from tiny_elmo import CLIPPED, FUSED, TEXTS, elmo_batch, elmo_tokenizer, tiny_elmo
from tiny_models import assert_same_outputs, largest_difference, poison_new_memory
from torch.autograd import grad

from modeling_hire.configuration_elmo_characters import boundary
from modeling_hire.modeling_elmo import ElmoModel


SETTINGS: dict[str, dict[str, Any]] = {
    "clipped": {},
    "fused": FUSED,
    "no skip": {"use_skip_connections": False},
    "tanh": {"character_activation": "tanh"},
    "one layer": {"num_hidden_layers": 1},
    "three layers": {"num_hidden_layers": 3, **FUSED},
    "no highway": {"num_highway_layers": 0},
    "normalised": {"mix_layer_norm": True},
}


def naive(model: ElmoModel, ids: torch.Tensor) -> list[torch.Tensor]:
    """All layers of one text `(tokens, max_characters)`, token by token and without any shortcut."""
    config, encoder = model.config, model.encoder
    width = config.max_characters
    ids = torch.stack([torch.tensor(boundary(257, width)), *ids, torch.tensor(boundary(258, width))])
    act = {"relu": torch.relu, "tanh": torch.tanh}[config.character_activation]
    parts = encoder.characters
    tokens = []
    for token in ids:
        embedded = parts.embedding.weight[token]
        found = []
        for (size, _), convolution in zip(config.filters, parts.convolutions, strict=True):
            windows = [embedded[start : start + size] for start in range(width - size + 1)]
            seen = [act(torch.einsum("oiw,wi->o", convolution.weight, w) + convolution.bias) for w in windows]
            found.append(torch.stack(seen).amax(dim=0))
        vector = torch.cat(found)
        for highway in parts.highways:
            carry = torch.sigmoid(highway.gate.weight @ vector + highway.gate.bias)
            passed = torch.relu(highway.transform.weight @ vector + highway.transform.bias)
            vector = carry * passed + (1 - carry) * vector
        tokens.append(parts.projection.weight @ vector + parts.projection.bias)
    sides = {"forward": torch.stack(tokens), "backward": torch.stack(tokens[::-1])}
    layers = [torch.cat([sides["forward"], sides["backward"].flip(0)], dim=1)]
    for number, layer in enumerate(encoder.layers):
        for direction, inputs in sides.items():
            lstm = getattr(layer, f"{direction}_lstm")
            start = inputs.new_zeros(lstm.proj_size), inputs.new_zeros(lstm.hidden_size)
            outputs, *_ = one_by_one(lstm, inputs, *start, (config.cell_clip, config.proj_clip))
            sides[direction] = outputs + inputs if config.use_skip_connections and number else outputs
        layers.append(torch.cat([sides["forward"], sides["backward"].flip(0)], dim=1))
    return [layer[1:-1] for layer in layers]


def mixed(model: ElmoModel, layers: list[torch.Tensor]) -> torch.Tensor:
    """The mixture of the layers of one text."""
    if model.config.mix_layer_norm:
        layers = [(h - h.mean()) / (h.var(unbiased=False) + 1e-12) ** 0.5 for h in layers]
    weights = model.mix.layer_scores.exp() / model.mix.layer_scores.exp().sum()
    return model.mix.gamma * sum(weight * layer for weight, layer in zip(weights, layers, strict=True))


@torch.no_grad()
def outputs_of(model: ElmoModel, batch: Any) -> list[torch.Tensor]:
    outputs = model(**batch, output_hidden_states=True)
    return [outputs.last_hidden_state, *outputs.hidden_states]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@torch.no_grad()
def test_equals_a_naive_model(settings: dict[str, Any]) -> None:
    model = tiny_elmo(**settings)
    batch = elmo_batch()
    outputs = outputs_of(model, batch)
    assert all(value.shape == (*batch["attention_mask"].shape, 12) for value in outputs)
    for row, text in enumerate(TEXTS):
        ids = torch.tensor(elmo_tokenizer()(text)["input_ids"])
        layers = naive(model, ids)
        for actual, expected in zip(outputs, [mixed(model, layers), *layers], strict=True):
            torch.testing.assert_close(actual[row, : len(ids)], expected, atol=1e-5, rtol=0)
            assert not actual[row, len(ids) :].any(), "padding"


@pytest.mark.parametrize("settings", [CLIPPED, FUSED, {"mix_layer_norm": True}], ids=["clipped", "fused", "norm"])
class TestInvariance:
    def test_padding_and_batch_size(self, settings: dict[str, Any]) -> None:
        model = tiny_elmo(**settings)
        alone = [outputs_of(model, elmo_batch(text)) for text in TEXTS]
        for side in ("right", "left"):
            batch = elmo_batch(*TEXTS, side=side, pad_to_multiple_of=17)
            for actual, *expected in zip(outputs_of(model, batch), *alone, strict=True):
                for row, value in enumerate(expected):
                    real = batch["attention_mask"][row] != 0
                    torch.testing.assert_close(actual[row][real], value[0], atol=1e-5, rtol=0)

    def test_padding_in_the_middle_with_anything_in_it(self, settings: dict[str, Any]) -> None:
        model, batch = tiny_elmo(**settings), elmo_batch(TEXTS[0])
        ids, mask = batch["input_ids"], batch["attention_mask"]
        holes = torch.randint(1, 262, (1, 3, 50))
        ids = torch.cat([ids[:, :4], holes, ids[:, 4:]], dim=1)
        mask = torch.cat([mask[:, :4], torch.zeros(1, 3, dtype=mask.dtype), mask[:, 4:]], dim=1)
        actual = outputs_of(model, {"input_ids": ids, "attention_mask": mask})
        for one, other in zip(actual, outputs_of(model, batch), strict=True):
            torch.testing.assert_close(one[mask != 0], other[0], atol=1e-5, rtol=0)

    def test_order_and_repetition(self, settings: dict[str, Any]) -> None:
        # allennlp#1169 and others: the same sentence twice gave different vectors.
        model, batch = tiny_elmo(**settings), elmo_batch()
        first = outputs_of(model, batch)
        order = torch.tensor([2, 0, 3, 1])
        turned = outputs_of(model, {name: value[order] for name, value in batch.items()})
        for one, again, other in zip(first, outputs_of(model, batch), turned, strict=True):
            assert torch.equal(one, again)
            torch.testing.assert_close(other, one[order], atol=1e-5, rtol=0)

    def test_texts_of_a_pair_are_read_by_themselves(self, settings: dict[str, Any]) -> None:
        model = tiny_elmo(**settings)
        pairs = outputs_of(model, elmo_batch((TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[3])))
        alone = [outputs_of(model, elmo_batch(text)) for text in TEXTS]
        for both, *singles in zip(pairs, *alone, strict=True):
            for row in (0, 1):
                expected = torch.cat([singles[2 * row][0], singles[2 * row + 1][0]])
                torch.testing.assert_close(both[row, : len(expected)], expected, atol=1e-5, rtol=0)


def test_mask_may_be_left_out() -> None:
    model, batch = tiny_elmo(), elmo_batch()
    assert_same_outputs(outputs_of(model, {"input_ids": batch["input_ids"]}), outputs_of(model, batch))


def test_a_text_without_tokens_and_one_longer_than_a_token() -> None:
    model = tiny_elmo()
    assert not outputs_of(model, elmo_batch(""))[0].any()
    outputs = outputs_of(model, elmo_batch("", "x" * 70, "x" * 48, "x" * 47))[0]
    assert not outputs[0].any()
    torch.testing.assert_close(outputs[1], outputs[2])
    assert largest_difference(outputs[2], outputs[3]) > 1e-4


class TestStateful:
    @pytest.mark.parametrize("settings", [CLIPPED, FUSED], ids=["clipped", "fused"])
    @torch.no_grad()
    def test_continues_where_it_stopped(self, settings: dict[str, Any]) -> None:
        model, stateless = tiny_elmo(stateful=True, **settings), tiny_elmo(**settings)
        one, two = (elmo_batch(text) for text in TEXTS[:2])
        first = outputs_of(model, one)
        assert_same_outputs(first, outputs_of(stateless, one))
        second = outputs_of(model, two)
        assert (second[0] - outputs_of(stateless, two)[0]).abs().max() > 1e-2
        # The forward direction reads on as if both texts, with their ends, were one.
        ids = [
            boundary(257),
            *one["input_ids"][0].tolist(),
            boundary(258),
            boundary(257),
            *two["input_ids"][0].tolist(),
        ]
        joined = outputs_of(stateless, {"input_ids": torch.tensor([ids[1:]])})
        expected = joined[-1][0, len(ids) - 1 - two["input_ids"].shape[1] :, :6]
        torch.testing.assert_close(second[-1][0, :, :6], expected, atol=1e-5, rtol=0)
        model.reset_states()
        assert_same_outputs(outputs_of(model, one), first)

    @torch.no_grad()
    def test_row_by_row(self) -> None:
        model = tiny_elmo(stateful=True)
        batches = [(TEXTS[0], TEXTS[1], TEXTS[2]), (TEXTS[3],), (TEXTS[1], TEXTS[2], TEXTS[0], TEXTS[3])]
        together = [outputs_of(model, elmo_batch(*texts))[0] for texts in batches]
        for row in range(4):
            model.reset_states()
            for texts, outputs in zip(batches, together, strict=True):
                if row < len(texts):
                    batch = elmo_batch(texts[row])
                    expected = outputs_of(model, batch)[0][0]
                    torch.testing.assert_close(outputs[row, : len(expected)], expected, atol=1e-5, rtol=0)

    def test_switched_later_and_never_saved(self, tmp_path: Path) -> None:
        model, batch = tiny_elmo(stateful=True), elmo_batch()
        keys = set(model.state_dict())
        first = outputs_of(model, batch)
        outputs_of(model, batch)
        assert set(model.state_dict()) == keys
        model.save_pretrained(tmp_path)
        again = ElmoModel.from_pretrained(tmp_path)
        assert again.config.stateful
        assert_same_outputs(outputs_of(again, batch), first)
        model.config.stateful = False
        assert_same_outputs(outputs_of(model, batch), first)
        assert_same_outputs(outputs_of(model, batch), first)

    def test_gradients_stop_at_the_batch(self) -> None:
        model, batch = tiny_elmo(stateful=True), elmo_batch()
        for _ in range(2):
            model(**batch).last_hidden_state.sum().backward()

    def test_refuses_pairs(self) -> None:
        with pytest.raises(ValueError, match="token_type_ids of pairs with stateful=True"):
            tiny_elmo(stateful=True)(**elmo_batch((TEXTS[0], TEXTS[1])))


class TestMixture:
    def test_starts_as_the_mean(self) -> None:
        model = tiny_elmo()
        model.mix.layer_scores.data.zero_()
        model.mix.gamma.data.fill_(1.0)
        outputs = outputs_of(model, elmo_batch())
        torch.testing.assert_close(outputs[0], torch.stack(outputs[1:]).mean(dim=0))

    def test_is_trained_and_saved(self, tmp_path: Path) -> None:
        model, batch = tiny_elmo().train(), elmo_batch()
        model(**batch).last_hidden_state.square().sum().backward()
        assert all(value.grad.abs().min() > 0 for value in model.mix.parameters())
        model.mix.layer_scores.data = torch.tensor([1.0, -2.0, 0.5])
        model.save_pretrained(tmp_path)
        assert ElmoModel.from_pretrained(tmp_path).mix.layer_scores.tolist() == [1.0, -2.0, 0.5]

    def test_every_parameter_has_a_share(self) -> None:
        model, batch = tiny_elmo(), elmo_batch()
        model(**batch).last_hidden_state.square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.any(), name

    def test_chosen_hidden_states(self) -> None:
        model, batch = tiny_elmo(), elmo_batch()
        everything = outputs_of(model, batch)[1:]
        chosen = model(**batch, output_hidden_states=[0, -1]).hidden_states
        assert chosen[1] is None and torch.equal(chosen[0], everything[0]) and torch.equal(chosen[2], everything[2])
        assert model(**batch).hidden_states is None
        half = everything[0].shape[2] // 2
        assert torch.equal(everything[0][..., :half], everything[0][..., half:])
        assert len(model(**batch, return_dict=False)) == 1


class TestInputs:
    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({"input_ids": torch.zeros(2, 5, dtype=torch.long)}, r"input_ids of shape \(2, 5\): allowed is \(batch"),
            ({"input_ids": torch.zeros(2, 5, 9, dtype=torch.long)}, r"allowed is \(batch, tokens, 50\)"),
            ({"input_ids": torch.zeros(2, 0, 50, dtype=torch.long)}, "at least 1 of each"),
            ({"input_ids": torch.full((1, 2, 50), 262)}, r"input_ids from 262 to 262: .* 0 to 261 \(num_characters\)"),
            ({"input_ids": torch.full((1, 2, 50), -1)}, "input_ids from -1 to -1"),
            (
                {"input_ids": torch.ones(1, 2, 50, dtype=torch.long), "attention_mask": torch.ones(1, 3)},
                r"attention_mask of shape \(1, 3\)",
            ),
            (
                {"input_ids": torch.ones(1, 2, 50, dtype=torch.long), "token_type_ids": torch.ones(1, 3)},
                r"token_type_ids of shape \(1, 3\): allowed is \(batch, tokens\), here \(1, 2\)",
            ),
            ({}, "input_ids=None"),
        ],
    )
    def test_refuses(self, inputs: dict[str, torch.Tensor], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            tiny_elmo()(**inputs)

    def test_has_no_token_embeddings(self) -> None:
        with pytest.raises(ValueError, match="no token embeddings to resize"):
            tiny_elmo().resize_token_embeddings(100)
        assert tiny_elmo().get_input_embeddings().num_embeddings == 262


class TestInitialisation:
    def test_everything_is_drawn(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        model = tiny_elmo()
        model.save_pretrained(tmp_path)
        poison_new_memory(monkeypatch)
        for fresh in (ElmoModel(model.config), ElmoModel.from_pretrained(None, config=model.config, state_dict={})):
            for name, value in fresh.state_dict().items():
                assert value.isfinite().all(), name
            assert not fresh.encoder.characters.embedding.weight[0].any()
            assert (fresh.encoder.characters.highways[0].gate.bias == -2).all()
            lstm = fresh.encoder.layers[1].backward_lstm
            assert lstm.bias_ih_l0.tolist() == [0.0] * 10 + [1.0] * 10 + [0.0] * 20 and not lstm.bias_hh_l0.any()
            bound = (6 / (6 + 6 + 40)) ** 0.5
            assert 0.8 * bound < lstm.weight_ih_l0.abs().max() <= bound
            assert not fresh.mix.layer_scores.any() and fresh.mix.gamma == 1
        loaded = ElmoModel.from_pretrained(tmp_path)
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())

    def test_a_seed_gives_the_same(self) -> None:
        one, other = (ElmoModel(tiny_elmo(seed=1).config) for _ in range(2) if torch.manual_seed(5))
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_dropout_only_while_training() -> None:
    model, batch = tiny_elmo(dropout=0.3, mix_dropout=0.3), elmo_batch()
    assert torch.equal(model(**batch).last_hidden_state, model(**batch).last_hidden_state)
    model.train()
    assert not torch.equal(model(**batch).last_hidden_state, model(**batch).last_hidden_state)


def test_autocast_leaves_the_recurrence_alone() -> None:
    model, batch = tiny_elmo(), elmo_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(**batch).last_hidden_state
    assert_same_outputs([outputs], [model(**batch).last_hidden_state])


@pytest.mark.parametrize("settings", [CLIPPED, FUSED], ids=["clipped", "fused"])
def test_second_order_through_the_whole_model(settings: dict[str, Any]) -> None:
    """A Hessian-vector product against finite differences of gradients."""
    model, batch = tiny_elmo(dtype=torch.float64, **settings), elmo_batch(*TEXTS[1:3])
    parameters = list(model.parameters())
    vector = [torch.randn_like(parameter) for parameter in parameters]

    def gradient(create_graph: bool = False) -> list[torch.Tensor]:
        loss = model(**batch).last_hidden_state.square().sum()
        return list(grad(loss, parameters, create_graph=create_graph))

    first = gradient(create_graph=True)
    exact = grad(sum((g * v).sum() for g, v in zip(first, vector, strict=True)), parameters)
    step, sides = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, v in zip(parameters, vector, strict=True):
                parameter.add_(sign * step * v)
        sides.append(gradient())
        with torch.no_grad():
            for parameter, v in zip(parameters, vector, strict=True):
                parameter.sub_(sign * step * v)
    for (name, _), product, up, down in zip(model.named_parameters(), exact, *sides, strict=True):
        expected = (up - down) / (2 * step)
        torch.testing.assert_close(product, expected, atol=1e-5, rtol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
