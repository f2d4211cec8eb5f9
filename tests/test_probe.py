"""The reconstruction probe: its numbers against naive loops, and what may not change them."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import enliven, tiny_tokenizer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForMaskedLM, BertForMaskedLM, BertModel, PreTrainedModel

from modeling_hire.analysis.reconstruction import ReconstructionProbe
from modeling_hire.analysis.reconstruction_results import LayerScores
from modeling_hire.analysis.reconstruction_scores import ScoreCounter


TEXTS = ["w1 w2 w3 w4 w5 w6 w7 w8", "w9", "w20 w30 zzz w50 w60", "w7 w7 w7", "w80 w81 w82 w83 w84 w85"]


def tiny_mlm(model_type: str = "bert", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A model with weights so wide that its layers differ."""
    torch.manual_seed(seed)
    model = AutoModelForMaskedLM.from_config(
        tiny_encoder_config(model_type, **{"initializer_range": 0.3, **overrides})
    )
    return model.eval()


def probe_of(model: PreTrainedModel, **sizes: int) -> ReconstructionProbe:
    return ReconstructionProbe(model, tiny_tokenizer(), **sizes)


def naive(model: BertForMaskedLM, texts: list[str], layer: int, with_special: bool) -> list[float]:
    """One token at a time, one text at a time, with Python and numpy."""
    tokenizer = tiny_tokenizer()
    right, losses, ranks, cosines = [], [], [], []
    for text in texts:
        row = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model.bert(**row, output_hidden_states=True).hidden_states
            logits = model.cls(states[layer])[0].double().numpy()
        for place, token in enumerate(row["input_ids"][0].tolist()):
            if token in (0, 1, 2, 3, 4) and not with_special:
                continue
            scores = logits[place]
            shares = np.exp(scores) / np.exp(scores).sum()
            right.append(int(scores.argmax()) == token)
            losses.append(-math.log(shares[token]))
            ranks.append(sorted(range(len(scores)), key=lambda i, s=scores: -s[i]).index(token) + 1)
            own, last = (states[index][0, place].double().numpy() for index in (layer, -1))
            cosines.append(own @ last / np.linalg.norm(own) / np.linalg.norm(last))
    return [len(right), np.mean(right), np.mean(losses), np.mean(ranks), np.median(ranks), np.mean(cosines)]


def numbers(layers: list[LayerScores]) -> list[float]:
    return [value for layer in layers for part in (layer.content, layer.everything) for value in vars(part).values()]


# ---- numbers --------------------------------------------------------------------------------------------------------


def test_layers_against_a_loop_over_tokens() -> None:
    model = tiny_mlm()
    layers = probe_of(model, batch_size=2, chunk_size=3).layers(TEXTS).layers
    assert [(entry.layer, entry.block) for entry in layers] == [(0, None), (1, 0), (2, 1), (3, 2)]
    for entry in layers:
        for scores, with_special in ((entry.content, False), (entry.everything, True)):
            expected = naive(model, TEXTS, entry.layer, with_special)
            assert list(dataclasses.astuple(scores)) == pytest.approx(expected, abs=1e-5)
    # [UNK] is special too: there is no token to recognise.
    assert layers[0].content.tokens == 22 and layers[0].everything.tokens == 33


def test_scores_computed_by_hand() -> None:
    counter = ScoreCounter(vocab_size=4)
    logits = torch.log(torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25]]))
    ids, special = torch.tensor([0, 2, 3]), torch.tensor([False, False, True])
    counter.add(logits, ids, special, torch.tensor([1.0, 0.5, 0.0]))
    content, everything = counter.scores()
    assert dataclasses.astuple(content) == pytest.approx((2, 0.5, -(math.log(0.7) + math.log(0.2)) / 2, 2, 2, 0.75))
    # A tie counts against the token: it is not the one that the output layer names.
    assert everything.mean_rank == pytest.approx((1 + 3 + 4) / 3)
    assert everything.median_rank == 3 and everything.accuracy == pytest.approx(1 / 3)


@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_median_rank_is_that_of_numpy(count: int) -> None:
    counter = ScoreCounter(vocab_size=50)
    logits, ids = torch.randn(count, 50), torch.randint(0, 50, (count,))
    ranks = [(row >= row[i]).sum().item() for row, i in zip(logits, ids, strict=True)]
    for start in range(count):  # one at a time
        one = slice(start, start + 1)
        counter.add(logits[one].clone(), ids[one], torch.zeros(1, dtype=torch.bool), torch.zeros(1))
    assert counter.scores()[0].median_rank == np.median(ranks)
    assert counter.scores()[0].mean_rank == pytest.approx(np.mean(ranks))


def test_no_tokens_and_numbers_that_are_none() -> None:
    counter = ScoreCounter(vocab_size=3)
    counter.add(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([True]), torch.ones(1))
    content, everything = counter.scores()
    assert content.tokens == 0 and math.isnan(content.accuracy) and everything.tokens == 1
    counter.add(torch.full((1, 3), torch.nan), torch.tensor([0]), torch.tensor([True]), torch.ones(1))
    with pytest.raises(ValueError, match="not finite"):
        counter.scores()


def test_with_and_without_the_final_norm() -> None:
    model = tiny_mlm("modernbert")
    with torch.no_grad():
        model.model.final_norm.weight.uniform_(0.2, 3.0)
    stack = probe_of(model).layers(["w1 w2 w3 w4 w5 w6"])
    assert stack.final_norm == "final_norm"
    row = tiny_tokenizer()("w1 w2 w3 w4 w5 w6", return_tensors="pt")
    before: list[torch.Tensor] = []
    model.model.layers[-1].register_forward_hook(lambda module, args, output: before.append(output))
    with torch.no_grad():
        states = list(model.model(**row, output_hidden_states=True).hidden_states)
        raw = before[0][0] if isinstance(before[0], tuple) else before[0]
        ids = row["input_ids"][0]
        for layer in range(4):
            plain = raw if layer == 3 else states[layer]
            for state, found in (
                (model.model.final_norm(plain), stack.layers[layer]),
                (plain, stack.without_final_norm[layer]),
            ):
                logits = model.decoder(model.head(state))[0]
                loss = torch.nn.functional.cross_entropy(logits, ids).item()
                assert found.everything.loss == pytest.approx(loss, abs=1e-5)
    assert stack.layers[3].everything.loss != pytest.approx(stack.without_final_norm[3].everything.loss, abs=1e-3)
    assert stack.layers[3].content.cosine == pytest.approx(1, abs=1e-6)
    assert stack.without_final_norm[3].content.cosine == pytest.approx(1, abs=1e-6)


def test_an_encoder_that_ends_in_a_layer_has_no_final_norm() -> None:
    stack = probe_of(tiny_mlm()).layers(TEXTS)
    assert stack.final_norm is None and stack.without_final_norm is None


# ---- removing and repeating -----------------------------------------------------------------------------------------


def deep_copied(model: BertForMaskedLM, plan: list[int]) -> BertForMaskedLM:
    """A stack built by hand, every block with weights of its own."""
    result = copy.deepcopy(model)
    blocks = [copy.deepcopy(model.bert.encoder.layer[block]) for block in plan]
    result.bert.encoder.layer = nn.ModuleList(blocks)
    result.config.num_hidden_layers = len(plan)
    return result.eval()


def test_plans_against_deep_copied_stacks() -> None:
    model = tiny_mlm()
    plan = [0, 0, 2, 1, 2]
    stack = probe_of(model, batch_size=2).layers(TEXTS, plan)
    assert stack.plan == plan and [entry.block for entry in stack.layers] == [None, *plan]
    by_hand = deep_copied(model, plan)
    expected = probe_of(by_hand).layers(TEXTS)
    assert numbers(stack.layers) == pytest.approx(numbers(expected.layers), abs=1e-5)
    assert expected.cosine_to_original is None
    last = naive(by_hand, TEXTS, 5, False)
    assert list(dataclasses.astuple(stack.layers[-1].content)) == pytest.approx(last, abs=1e-5)


def test_changes_against_deep_copied_stacks() -> None:
    model = tiny_mlm()
    changes = probe_of(model, batch_size=2).changes(TEXTS, repeat=(2, 3))
    assert [(c.block, c.times) for c in changes] == [(b, t) for t in (0, 2, 3) for b in range(3)]
    for change in changes:
        plan = [block for block in range(3) for _ in range(change.times if block == change.block else 1)]
        assert change.plan == plan
        by_hand = deep_copied(model, plan)
        *expected, _ = naive(by_hand, TEXTS, len(plan), False)
        cosines = []
        for text in TEXTS:
            row = tiny_tokenizer()(text, return_tensors="pt")
            kept = row["input_ids"][0] > 4
            with torch.no_grad():
                one, other = (m.bert(**row).last_hidden_state[0, kept] for m in (model, by_hand))
            cosines += torch.nn.functional.cosine_similarity(one, other).tolist()
        found = list(dataclasses.astuple(change.content))
        assert found == pytest.approx([*expected, np.mean(cosines)], abs=1e-5)
        stack = probe_of(model).layers(TEXTS, plan)
        assert stack.cosine_to_original == pytest.approx(np.mean(cosines), abs=1e-5)


def test_without_its_only_layer_nothing_is_left_to_probe() -> None:
    probe = probe_of(tiny_mlm(num_hidden_layers=1))
    assert [(change.block, change.times) for change in probe.changes(TEXTS, repeat=[2])] == [(0, 2)]
    assert probe.changes(TEXTS, repeat=[]) == []


@pytest.mark.parametrize("plan", [[], [3], [-1], [0, 1.5]])
def test_plans_that_cannot_be_executed(plan: list) -> None:
    with pytest.raises(ValueError, match="plan=.*0 to 2"):
        probe_of(tiny_mlm()).layers(TEXTS, plan)


@pytest.mark.parametrize("repeat", [[1], [0], [2.0], [True]])
def test_repeats_that_are_none(repeat: list) -> None:
    with pytest.raises(ValueError, match="repeat=.*from 2 on"):
        probe_of(tiny_mlm()).changes(TEXTS, repeat=repeat)


# ---- what may not matter, and what may not be changed ---------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["bert", "roberta", "modernbert", "deberta-v2"])
def test_batch_chunk_order_and_padding_do_not_matter(model_type: str) -> None:
    model = enliven(tiny_mlm(model_type), seed=3)
    reference = probe_of(model, batch_size=1, chunk_size=1)
    expected, changed = reference.layers(TEXTS), reference.changes(TEXTS, repeat=[2])
    for sizes in ({"batch_size": 5, "chunk_size": 1000}, {"batch_size": 2, "chunk_size": 4}):
        probe = probe_of(model, **sizes)
        found = probe.layers(TEXTS[::-1])
        assert numbers(found.layers) == pytest.approx(numbers(expected.layers), abs=1e-5)
        for one, other in zip(probe.changes(TEXTS[2:] + TEXTS[:2], repeat=[2]), changed, strict=True):
            assert dataclasses.astuple(one.content) == pytest.approx(dataclasses.astuple(other.content), abs=1e-5)


def test_rows_may_bring_padding_along() -> None:
    model, tokenizer = tiny_mlm(), tiny_tokenizer()
    expected = numbers(ReconstructionProbe(model, tokenizer, batch_size=1).layers(TEXTS[:1]).layers)
    rows, _ = ReconstructionProbe(model, tokenizer).encode(TEXTS[:1])
    rows[0] = {
        "input_ids": [*rows[0]["input_ids"], 0, 0],
        "attention_mask": [*([1] * len(rows[0]["input_ids"])), 0, 0],
    }
    assert numbers(ReconstructionProbe(model, tokenizer).layers(rows).layers) == pytest.approx(expected, abs=1e-5)


def test_twice_gives_the_same() -> None:
    model = tiny_mlm()
    assert probe_of(model).layers(TEXTS) == probe_of(model).layers(TEXTS)


def test_the_model_stays_as_it_was() -> None:
    model = tiny_mlm().train()
    model.bert.encoder.layer[1].eval()  # a frozen part
    modes = {name: module.training for name, module in model.named_modules()}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    config, modules = model.config.to_dict(), dict(model.named_modules())
    probe = probe_of(model)
    probe.layers(TEXTS, [0, 1, 1, 2])
    probe.changes(TEXTS)
    probe.decode(TEXTS[0])
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert model.config.to_dict() == config and dict(model.named_modules()) == modules
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    hooks = [hook for m in model.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    assert not [hook for hook in hooks if hook.__module__.startswith("modeling_hire")]
    assert all(parameter.grad is None for parameter in model.parameters())


class LargestTensor(TorchDispatchMode):
    """The most elements that any tensor had, and whether one wanted a gradient."""

    largest = 0
    wants_gradient = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
                self.wants_gradient |= tensor.requires_grad and not isinstance(tensor, nn.Parameter)
        return result


def test_never_more_logits_than_a_chunk() -> None:
    model = tiny_mlm(vocab_size=5000)
    probe = probe_of(model, chunk_size=4)
    texts = TEXTS * 20
    with LargestTensor() as seen:
        probe.layers(texts)
        probe.changes(texts, repeat=[2])
    # The vocabulary's own matrix is a tensor of 5000 x 32, and so many logits are 32 tokens'.
    assert seen.largest <= 5000 * 32
    with LargestTensor() as seen:
        probe_of(model, chunk_size=64).layers(texts)
    assert seen.largest == 5000 * 64
    assert not seen.wants_gradient


# ---- one text -------------------------------------------------------------------------------------------------------


def test_decoded_text_against_the_output_layer() -> None:
    model = tiny_mlm()
    tokens, layers = probe_of(model, chunk_size=2).decode("w1 w2 zzz w4")
    assert tokens == ["[CLS]", "w1", "w2", "[UNK]", "w4", "[SEP]"]
    row = tiny_tokenizer()("w1 w2 zzz w4", return_tensors="pt")
    with torch.no_grad():
        states = model.bert(**row, output_hidden_states=True).hidden_states
    assert [layer.layer for layer in layers] == [0, 1, 2, 3]
    for layer, state in zip(layers, states, strict=True):
        shares = model.cls(state)[0].softmax(dim=-1)
        own = shares[range(6), row["input_ids"][0]]
        assert layer.tokens == tiny_tokenizer().convert_ids_to_tokens(shares.argmax(dim=-1).tolist())
        assert layer.probability == pytest.approx(own.tolist(), abs=1e-6)
        assert layer.rank == [(shares[i] >= own[i]).sum().item() for i in range(6)]


# ---- texts ----------------------------------------------------------------------------------------------------------


def test_max_tokens_takes_whole_texts_in_order() -> None:
    probe = probe_of(tiny_mlm())
    sizes = [len(text.split()) + 2 for text in TEXTS]
    for limit, count in ((1, 1), (sizes[0], 1), (sum(sizes[:3]) - 1, 2), (sum(sizes[:3]), 3), (10_000, 5), (None, 5)):
        rows, cut = probe.encode(TEXTS, limit)
        assert [len(row["input_ids"]) for row in rows] == sizes[:count] and cut == 0


def test_long_texts_are_cut_and_counted() -> None:
    rows, cut = probe_of(tiny_mlm(), max_length=5).encode(["w1 w2 w3 w4 w5", "w1", "w1 w2 w3", ""])
    assert [len(row["input_ids"]) for row in rows] == [5, 3, 5] and cut == 1


def test_no_text() -> None:
    probe = probe_of(tiny_mlm())
    for texts in ([], ["", "  "]):
        with pytest.raises(ValueError, match="no text with a token"):
            probe.layers(texts)
    with pytest.raises(ValueError, match="no text with a token"):
        probe.decode("")
    with pytest.raises(ValueError, match="max_length=2: allowed is more than the 2 special"):
        probe_of(tiny_mlm(), max_length=2).encode(["w1"])


@pytest.mark.parametrize("name", ["batch_size", "max_length", "chunk_size"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3"])
def test_sizes_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        probe_of(tiny_mlm(), **{name: value})


# ---- models it cannot probe -----------------------------------------------------------------------------------------


class HeadThatLooksBack(BertForMaskedLM):
    """Its logits depend on the embeddings too, not on the last layer alone."""

    def forward(self, input_ids: Any = None, **kwargs: Any) -> Any:
        output = super().forward(input_ids=input_ids, **kwargs)
        output.logits = output.logits + self.bert.embeddings(input_ids)[..., :1]
        return output


class HeadThatNeedsItsEncoder(BertForMaskedLM):
    def forward(self, input_ids: Any = None, **kwargs: Any) -> Any:
        states = self.bert(input_ids=input_ids, output_hidden_states=True).hidden_states
        return super().forward(input_ids=input_ids, inputs_embeds=None, **kwargs) if states[0] is not None else None


def test_a_head_that_reads_more_than_the_last_layer() -> None:
    config = tiny_encoder_config("bert", initializer_range=0.3)
    with pytest.raises(ValueError, match="HeadThatLooksBack: given its last layer alone"):
        probe_of(HeadThatLooksBack(config).eval())
    with pytest.raises(ValueError, match="HeadThatNeedsItsEncoder: its output layer does not run without"):
        probe_of(HeadThatNeedsItsEncoder(config).eval())


def test_models_without_an_output_layer() -> None:
    with pytest.raises(ValueError, match="BertModel: must be a masked language model"):
        probe_of(BertModel(tiny_encoder_config("bert")).eval())
    with pytest.raises(ValueError, match="Linear: must be a masked language model"):
        probe_of(nn.Linear(2, 2))
