"""The contrastive loss against loops over anchors and candidates, and its gradient against finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from modeling_hire.training.contrastive_loss import ContrastiveLoss


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.tolist(), b.tolist()
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def naive(z: torch.Tensor, ids: list[list[int]], temperature: float = 0.05, weight: float = 0.0) -> float:
    """Anchor by anchor and candidate by candidate, by the definition."""
    rows, texts = z.shape[:2]
    total = 0.0
    for i in range(rows):
        terms, positive = [], None
        for k in range(1, texts):
            for j in range(rows):
                logit = cosine(z[i, 0], z[j, k]) / temperature + (weight if k > 1 and i == j else 0.0)
                if k == 1 and i == j:
                    positive = logit
                elif ids[j][k] in (ids[i][0], ids[i][1]) or (k == 1 and ids[j][0] == ids[i][0]):
                    continue  # the same text as the anchor or its positive, or a positive of the same anchor
                terms.append(logit)
        largest = max(terms)
        total += largest + math.log(sum(math.exp(term - largest) for term in terms)) - positive
    return total / rows


def draw(rows: int, texts: int, width: int = 6, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, list]:
    """Embeddings, and a number of its own for each text."""
    generator = torch.Generator().manual_seed(10 * rows + texts)
    z = torch.randn(rows, texts, width, generator=generator, dtype=dtype)
    return z, [[texts * i + k for k in range(texts)] for i in range(rows)]


def check(loss: ContrastiveLoss, z: torch.Tensor, ids: list[list[int]], expected: float) -> None:
    found = loss(z, torch.tensor(ids))
    assert found.dtype == torch.float64 and found.shape == ()
    assert found.item() == pytest.approx(expected, abs=1e-12, rel=1e-12)


@pytest.mark.parametrize("texts", [2, 3, 4])
@pytest.mark.parametrize("weight", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_against_the_definition(texts: int, weight: float, temperature: float) -> None:
    """Pairs, one and two hard negatives."""
    z, ids = draw(5, texts)
    check(ContrastiveLoss(temperature, weight), z, ids, naive(z, ids, temperature, weight))


def test_the_weight_is_on_the_own_negatives_alone() -> None:
    z, ids = draw(5, 3)
    assert naive(z, ids, weight=1.0) > naive(z, ids, weight=0.0) + 1e-6
    # One row: all the negatives are its own, and the weight is a factor e^w on each.
    one, number = z[:1], ids[:1]
    for w in (0.0, 1.0):
        positive, negative = (math.exp(cosine(one[0, 0], one[0, k])) for k in (1, 2))
        expected = -math.log(positive / (positive + math.exp(w) * negative))
        check(ContrastiveLoss(1.0, w), one, number, expected)


def test_by_hand() -> None:
    """Two orthogonal pairs at temperature 1: -log(e / (e + 1)); each anchor with its negative: one more e^0."""
    z = torch.eye(2, dtype=torch.float64)[:, None].expand(-1, 2, -1)
    check(ContrastiveLoss(1.0), z, [[0, 1], [2, 3]], math.log(1 + 1 / math.e))
    # The negative of each row is the other row's anchor: cosine 0 to its own row, 1 to the other one's.
    both = torch.cat([z, z.flip(0)[:, :1]], dim=1)
    expected = -math.log(math.e / (math.e + 1 + math.exp(0.5) + math.e))
    check(ContrastiveLoss(1.0, 0.5), both, [[0, 1, 4], [2, 3, 5]], expected)


def test_scale_of_embeddings_does_not_matter() -> None:
    z, ids = draw(4, 3)
    scaled = z * torch.tensor([0.01, 1, 100, 3.0], dtype=torch.float64)[:, None, None]
    check(ContrastiveLoss(), scaled, ids, naive(z, ids, weight=1.0))


def test_order_of_rows_does_not_matter() -> None:
    z, ids = draw(6, 4)
    turned = [3, 1, 5, 0, 4, 2]
    check(ContrastiveLoss(), z[turned], [ids[i] for i in turned], naive(z, ids, weight=1.0))


@pytest.mark.parametrize("texts", [2, 3])
def test_two_ways(texts: int) -> None:
    """The mean of both ways; hard negatives are the anchors' alone."""
    z, ids = draw(5, texts)
    back = z[:, :2].flip(1), [[b, a] for a, b, *_ in ids]
    expected = (naive(z, ids, weight=1.0) + naive(*back)) / 2
    check(ContrastiveLoss(two_way=True), z, ids, expected)


@pytest.mark.parametrize("two_way", [False, True])
def test_matryoshka(two_way: bool) -> None:
    """The mean over widths; each cut is normalised anew."""
    z, ids = draw(5, 3)
    dims = [2, 5, 6]
    parts = [naive(z[..., :d], ids, weight=1.0) for d in dims]
    if two_way:
        parts += [naive(z[:, :2, :d].flip(1), [[b, a] for a, b, _ in ids]) for d in dims]
    check(ContrastiveLoss(two_way=two_way, dimensions=dims), z, ids, sum(parts) / len(parts))
    check(ContrastiveLoss(dimensions=[6]), z, ids, naive(z, ids, weight=1.0))


SAME = [
    # One positive for two anchors; one anchor with two positives; the same row twice.
    [[0, 1], [2, 1], [3, 4], [5, 6]],
    [[0, 1], [0, 2], [3, 4], [5, 6]],
    [[0, 1], [0, 1], [3, 4], [5, 6]],
    # An anchor that is another row's positive, and a row whose positive is its anchor.
    [[0, 1], [2, 0], [3, 3], [5, 6]],
    # Hard negatives that are another row's anchor or positive, the own anchor or positive, or each other.
    [[0, 1, 2], [2, 3, 1], [4, 5, 4], [6, 7, 7]],
    [[0, 1, 8, 8], [2, 3, 0, 8], [4, 5, 3, 2], [6, 7, 9, 9]],
]


@pytest.mark.parametrize("ids", SAME)
@pytest.mark.parametrize("two_way", [False, True])
def test_equal_texts_are_no_negatives(ids: list[list[int]], two_way: bool) -> None:
    z, _ = draw(4, len(ids[0]))
    # The same text has the same embedding only without dropout; the numbers alone decide.
    expected = naive(z, ids, temperature=1, weight=1)
    other = [[10 * i + k for k in range(z.shape[1])] for i in range(4)]
    assert expected < naive(z, other, temperature=1, weight=1) - 1e-2, "something was left out"
    if two_way:
        expected = (expected + naive(z[:, :2].flip(1), [[b, a] for a, b, *_ in ids], temperature=1)) / 2
    check(ContrastiveLoss(1, two_way=two_way), z, ids, expected)


def test_positives_of_one_anchor_by_hand() -> None:
    """Rows (a, p), (a, q), (b, r), all cosines 0 but those of pairs: p and q have one negative, r two."""
    vectors = torch.eye(3, dtype=torch.float64)
    z = vectors[[0, 1, 2]][:, None].expand(-1, 2, -1)
    expected = (2 * math.log(1 + 1 / math.e) + math.log(1 + 2 / math.e)) / 3
    check(ContrastiveLoss(1), z, [[0, 1], [0, 2], [3, 4]], expected)


def test_a_row_without_any_negative_left_adds_nothing() -> None:
    """All rows hold the same two texts: there is nothing to learn, and no NaN."""
    z, _ = draw(3, 2)
    z.requires_grad_()
    loss = ContrastiveLoss()(z, torch.tensor([[0, 1]] * 3))
    loss.backward()
    assert loss.item() == 0 and not z.grad.any()


def test_a_text_and_itself() -> None:
    """Self-supervised rows: both texts of a row have one number, and the positive stays the positive."""
    z, _ = draw(5, 2)
    ids = [[0, 0], [1, 1], [2, 2], [0, 0], [4, 4]]
    check(ContrastiveLoss(), z, ids, naive(z, ids))
    logits = torch.nn.functional.cosine_similarity(z[:, None, 0], z[None, :, 1], dim=-1) / 0.05
    logits[0, 3] = logits[3, 0] = -torch.inf
    check(ContrastiveLoss(), z, ids, torch.nn.functional.cross_entropy(logits, torch.arange(5)).item())


@pytest.mark.parametrize("settings", [{}, {"two_way": True, "dimensions": [2, 4], "hard_negative_weight": 0.5}])
def test_gradient_against_finite_differences(settings: dict) -> None:
    z, ids = draw(3, 4, width=4)
    ids[1][2] = ids[0][1]
    numbers = torch.tensor(ids)
    assert torch.autograd.gradcheck(lambda x: ContrastiveLoss(0.5, **settings)(x, numbers), z.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    z, ids = draw(6, 3)
    z = z.to(dtype)
    loss = ContrastiveLoss()(z, torch.tensor(ids))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(naive(z.double(), ids, weight=1.0), rel=1e-5)


def test_zero_embeddings_give_no_nan() -> None:
    z, ids = draw(4, 2)
    z[1] = 0
    z.requires_grad_()
    loss = ContrastiveLoss()(z, torch.tensor(ids))
    loss.backward()
    assert loss.isfinite() and z.grad.isfinite().all()


def test_one_candidate() -> None:
    z, ids = draw(1, 2)
    with pytest.raises(ValueError, match=r"no hard negative.*nothing but its positive.*larger batch"):
        ContrastiveLoss()(z, torch.tensor(ids))
