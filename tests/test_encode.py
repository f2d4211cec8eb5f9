"""`encode`: from texts to embeddings as sentence-transformers does it, whatever the texts and their order."""

from __future__ import annotations

import inspect
import logging
import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from tiny_embedders import minilm_folder
from tiny_models import tiny_tokenizer
from tiny_sentence_encoders import close, embed_alone, saved, sentence_model, texts_of_many_lengths
from transformers import PreTrainedTokenizerFast

from modeling_hire import LayerAttnPoolEncoder
from modeling_hire.modeling_text_encoding import SORTED_BATCHES


TEXTS = texts_of_many_lengths()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LayerAttnPoolEncoder:
    return saved(tmp_path_factory.mktemp("model"), prompts={"query": "w80 w81 ", "passage": "w82 "})


@pytest.fixture(scope="module")
def expected(model: LayerAttnPoolEncoder, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Every text by itself, without padding."""
    return embed_alone(model, tokenizer, TEXTS).numpy()


class TestSignature:
    def test_has_the_names_and_defaults_of_sentence_transformers(self) -> None:
        library = pytest.importorskip("sentence_transformers")
        theirs = dict(inspect.signature(library.SentenceTransformer.encode).parameters)
        ours = dict(inspect.signature(LayerAttnPoolEncoder.encode).parameters)
        names = [name for name in ours if name not in ("self", "sentences", "tokenizer")]
        assert {name: ours[name].default for name in names} == {name: theirs[name].default for name in names}
        assert names == [name for name in theirs if name in names], "another order"

    def test_texts_come_first_and_the_prompt_next(self) -> None:
        assert list(inspect.signature(LayerAttnPoolEncoder.encode).parameters)[1:4] == [
            "sentences",
            "prompt_name",
            "prompt",
        ]


class TestBatches:
    @pytest.mark.parametrize("batch_size", [1, 2, 7, 32])
    def test_do_not_change_the_result(
        self, model: LayerAttnPoolEncoder, expected: np.ndarray, batch_size: int
    ) -> None:
        assert close(model.encode(TEXTS, batch_size=batch_size), expected)

    def test_come_back_in_the_order_of_the_texts(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        order = random.Random(1).sample(range(len(TEXTS)), len(TEXTS))
        assert close(model.encode([TEXTS[row] for row in order], batch_size=4), expected[order])

    def test_a_text_twice_is_embedded_twice_alike(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        assert close(model.encode([TEXTS[3], TEXTS[0], TEXTS[3]], batch_size=2), expected[[3, 0, 3]])

    def test_of_a_corpus_are_tokenised_in_parts(
        self, model: LayerAttnPoolEncoder, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert SORTED_BATCHES >= 16
        monkeypatch.setattr("modeling_hire.modeling_text_encoding.SORTED_BATCHES", 2)
        model.encode("w1")  # the tokenizer is there now
        counts = []
        tokenise = type(model.tokenizer).__call__

        def counting(self: Any, text: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(text, list):  # not the word on which it is tried whether the tokenizer fits
                counts.append(len(text))
            return tokenise(self, text, *args, **kwargs)

        monkeypatch.setattr(type(model.tokenizer), "__call__", counting)
        assert close(model.encode(TEXTS, batch_size=3), expected)
        assert counts == [6, 6, 6, 5]

    def test_hold_texts_of_like_length(self, model: LayerAttnPoolEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
        shapes, real = [], []

        def noting(module: Any, args: tuple, kwargs: dict) -> None:
            shapes.append(tuple(kwargs["input_ids"].shape))
            real.append(int(kwargs["attention_mask"].sum()))

        handle = model.register_forward_pre_hook(noting, with_kwargs=True)
        model.encode(TEXTS, batch_size=4)
        handle.remove()
        assert [rows for rows, _ in shapes] == [4] * 5 + [3]
        widths = [tokens for _, tokens in shapes]
        assert widths == sorted(widths, reverse=True), "the longest come first"
        assert sum(real) / sum(rows * tokens for rows, tokens in shapes) > 0.85

    def test_larger_than_the_number_of_texts(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        assert close(model.encode(TEXTS, batch_size=1000), expected)

    @pytest.mark.parametrize("batch_size", [0, -1, 2.0, None, True])
    def test_of_another_size_are_refused(self, model: LayerAttnPoolEncoder, batch_size: Any) -> None:
        with pytest.raises(ValueError, match=re.escape(f"batch_size={batch_size!r}: allowed is a positive")):
            model.encode(TEXTS, batch_size=batch_size)


class TestTexts:
    def test_a_single_one(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        assert close(model.encode(TEXTS[0]), expected[0])
        assert close(model.encode(TEXTS[:1]), expected[:1])

    @pytest.mark.parametrize("kind", [tuple, np.array, iter, lambda texts: (text for text in texts)])
    def test_in_any_container(self, model: LayerAttnPoolEncoder, expected: np.ndarray, kind: Any) -> None:
        assert close(model.encode(kind(TEXTS)), expected)

    def test_none_at_all(self, model: LayerAttnPoolEncoder) -> None:
        assert model.encode([]).shape == (0, 32) and model.encode([]).dtype == np.float32
        assert model.encode([], truncate_dim=5, normalize_embeddings=True).shape == (0, 5)
        assert model.encode([], convert_to_tensor=True).shape == (0, 32)
        assert model.encode([], convert_to_numpy=False) == []

    def test_empty_and_blank(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        actual = model.encode(["", TEXTS[1], "   ", "\n\t"], batch_size=2)
        assert np.isfinite(actual).all()
        assert close(actual[1], expected[1]) and close(actual[[2, 3]], actual[[0, 0]])
        assert close(model.encode(""), actual[0])

    @pytest.mark.parametrize("length", [10**6])
    def test_of_a_million_characters(
        self, model: LayerAttnPoolEncoder, tokenizer: PreTrainedTokenizerFast, length: int
    ) -> None:
        words = "w1 " * (length // 3)
        actual = model.encode([words, "w2", "x" * length])
        # As many tokens as there are positions are read, the special ones included.
        alone = embed_alone(model, tokenizer, ["w1 " * 62, "w2", "unknown"])
        assert close(actual, alone.numpy())

    def test_of_control_characters_and_emoji(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        odd = [
            "\x00\x07\x1b[0m",
            "w1 \u200b\u202e w2",
            "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
            "é\u0301\ufeff",
            "\r\n",
        ]
        actual = model.encode([*odd, TEXTS[0]], batch_size=2)
        assert np.isfinite(actual).all()
        assert close(actual[-1], expected[0])
        assert close(model.encode(odd[1]), actual[1])

    @pytest.mark.parametrize("wrong", [None, 3, 2.5, float("nan"), b"w1", ["w1"], ("w1", "w2"), {"text": "w1"}])
    def test_that_are_none_are_refused_with_their_index(self, model: LayerAttnPoolEncoder, wrong: Any) -> None:
        kind = type(wrong).__name__
        with pytest.raises(ValueError, match=re.escape(f"sentences[2]={wrong!r} ({kind}): allowed is a text")):
            model.encode(["w1", "w2", wrong, None])

    @pytest.mark.parametrize("wrong", [None, 3, b"w1", {"a": "w1"}])
    def test_that_are_no_list_are_refused(self, model: LayerAttnPoolEncoder, wrong: Any) -> None:
        with pytest.raises(ValueError, match=re.escape(f"sentences={wrong!r}: allowed is a text or a list")):
            model.encode(wrong)

    def test_of_broken_unicode_are_refused_with_their_index(self, model: LayerAttnPoolEncoder) -> None:
        with pytest.raises(ValueError, match=r"sentences\[1\]: broken Unicode, '\\ud83d' at character 3; allowed"):
            model.encode(["\U0001f600", "w1 \ud83d w2"])
        repaired = "w1 \ud83d w2".encode("utf-8", "replace").decode()  # what the message says
        assert np.isfinite(model.encode(repaired)).all()


class TestPrompts:
    def test_by_name(self, model: LayerAttnPoolEncoder) -> None:
        written = model.encode([f"w80 w81 {text}" for text in TEXTS])
        assert close(model.encode(TEXTS, prompt_name="query"), written)
        assert close(model.encode(TEXTS, "query"), written)

    def test_as_text(self, model: LayerAttnPoolEncoder, caplog: pytest.LogCaptureFixture) -> None:
        written = model.encode([f"w70 {text}" for text in TEXTS])
        assert close(model.encode(TEXTS, prompt="w70 "), written)
        assert not caplog.text
        with caplog.at_level(logging.WARNING):
            assert close(model.encode(TEXTS, prompt_name="query", prompt="w70 "), written)
        assert "prompt_name='query' is not used" in caplog.text

    def test_of_the_configuration_unless_another_is_asked_for(self, model: LayerAttnPoolEncoder) -> None:
        other = sentence_model(prompts=model.config.prompts, default_prompt_name="query")
        tokenizer = model.tokenizer or tiny_tokenizer()
        plain = other.encode(TEXTS, tokenizer=tokenizer, prompt="")
        assert close(plain, model.encode(TEXTS))
        assert close(other.encode(TEXTS, tokenizer=tokenizer), model.encode(TEXTS, prompt_name="query"))
        passages = model.encode(TEXTS, prompt_name="passage")
        assert close(other.encode(TEXTS, tokenizer=tokenizer, prompt_name="passage"), passages)

    def test_that_do_not_exist_are_refused(self, model: LayerAttnPoolEncoder) -> None:
        with pytest.raises(ValueError, match=r"prompt_name='question': allowed is one of \['passage', 'query'\]"):
            model.encode(TEXTS, prompt_name="question")


class TestResult:
    def test_kinds(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        array = model.encode(TEXTS)
        assert type(array) is np.ndarray and array.dtype == np.float32
        tensor = model.encode(TEXTS, convert_to_tensor=True)
        assert type(tensor) is torch.Tensor and tensor.device == model.device and not tensor.requires_grad
        both = model.encode(TEXTS, convert_to_tensor=True, convert_to_numpy=True)
        assert type(both) is torch.Tensor, "the tensor wins"
        neither = model.encode(TEXTS, convert_to_numpy=False)
        assert type(neither) is list and {type(each) for each in neither} == {torch.Tensor}
        for result in (array, tensor, both, torch.stack(neither)):
            assert close(result, expected)

    def test_kinds_of_a_single_one(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        for options in ({}, {"convert_to_tensor": True}, {"convert_to_numpy": False}):
            result = model.encode(TEXTS[2], **options)
            assert type(result) is (torch.Tensor if options else np.ndarray)
            assert close(result, expected[2])

    def test_can_be_trained_on(self, model: LayerAttnPoolEncoder) -> None:
        head = torch.nn.Linear(32, 1)
        head(model.encode(TEXTS, convert_to_tensor=True)).sum().backward()
        assert head.weight.grad.any()

    def test_cut_to_the_first_dimensions(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        for width in (1, 7, 32):
            assert close(model.encode(TEXTS, truncate_dim=width), expected[:, :width])
        assert close(model.encode(TEXTS[0], truncate_dim=7), expected[0, :7])

    def test_of_length_one_after_cutting(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        for width in (None, 7):
            actual = model.encode(TEXTS, truncate_dim=width, normalize_embeddings=True)
            cut = expected[:, :width]
            assert close(actual, cut / np.linalg.norm(cut, axis=1, keepdims=True))

    @pytest.mark.parametrize("width", [33, 0, -1, 7.0, True, "7"])
    def test_of_a_width_that_does_not_exist_is_refused(self, model: LayerAttnPoolEncoder, width: Any) -> None:
        with pytest.raises(
            ValueError, match=re.escape(f"truncate_dim={width!r}: allowed is a whole number from 1 to 32")
        ):
            model.encode(TEXTS, truncate_dim=width)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_of_a_model_in_half_precision(self, dtype: torch.dtype, tokenizer: PreTrainedTokenizerFast) -> None:
        model = sentence_model()
        plain = model.encode(TEXTS, tokenizer=tokenizer)
        half = model.to(dtype).encode(TEXTS, tokenizer=tokenizer)
        assert half.dtype == np.float32 and close(half, plain, atol=0.15)
        assert model.encode(TEXTS, tokenizer=tokenizer, convert_to_tensor=True).dtype == dtype
        assert model.encode([], tokenizer=tokenizer).dtype == np.float32

    def test_does_not_depend_on_gradients_or_inference_mode(
        self, model: LayerAttnPoolEncoder, expected: np.ndarray
    ) -> None:
        with torch.inference_mode():
            assert close(model.encode(TEXTS), expected)
        with torch.enable_grad():
            assert not model.encode(TEXTS, convert_to_tensor=True).requires_grad


class TestModel:
    def test_every_part_keeps_its_mode(self, tokenizer: PreTrainedTokenizerFast) -> None:
        model = sentence_model()
        expected = model.encode(TEXTS, tokenizer=tokenizer)
        model.train()
        model.encoder.embeddings.eval()  # a frozen part, say
        modes = [module.training for module in model.modules()]
        assert close(model.encode(TEXTS, tokenizer=tokenizer), expected), "without dropout"
        assert [module.training for module in model.modules()] == modes

    def test_keeps_its_mode_after_a_failure(self, tokenizer: PreTrainedTokenizerFast) -> None:
        model = sentence_model().train()
        handle = model.pooler.register_forward_hook(lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.encode(TEXTS, tokenizer=tokenizer)
        handle.remove()
        assert all(module.training for module in model.modules())

    def test_goes_to_a_device(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        assert close(model.encode(TEXTS, device="cpu"), expected)
        assert close(model.encode(TEXTS, device=torch.device("cpu")), expected)

    @pytest.mark.parametrize("device", ["cpuu", "cuda:x", 1.5])
    def test_refuses_a_device_that_does_not_exist(self, model: LayerAttnPoolEncoder, device: Any) -> None:
        with pytest.raises(ValueError, match=re.escape(f"device={device!r}: allowed is a device of torch")):
            model.encode(TEXTS, device=device)

    @pytest.mark.parametrize("asked", [True, False, None])
    def test_shows_progress_when_asked(
        self, model: LayerAttnPoolEncoder, asked: bool | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = {}
        monkeypatch.setattr("transformers.utils.logging.tqdm", lambda **options: seen.update(options) or NoBar(seen))
        model.encode(TEXTS, batch_size=5, show_progress_bar=asked)
        assert seen["total"] == seen["done"] == len(TEXTS)
        assert seen["disable"] is (asked is not True)


class NoBar:
    def __init__(self, seen: dict[str, Any]):
        self.seen = seen
        seen["done"] = 0

    def __enter__(self) -> NoBar:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def update(self, count: int) -> None:
        self.seen["done"] += count


class TestRealWeights:
    """The sentence-transformers model of the extra [demo], against that library's own `encode`."""

    TEXTS = [
        "A man is playing a guitar.",
        "",
        "Ünïcödé, \U0001f600 and\ttabs",
        "The quick brown fox jumps over the lazy dog. " * 60,  # more tokens than are read
        "Short.",
        "12345 + 67890 = 80235",
    ]

    @pytest.fixture(scope="class")
    def pair(self) -> tuple[Any, LayerAttnPoolEncoder]:
        library = pytest.importorskip("sentence_transformers")
        theirs = library.SentenceTransformer(minilm_folder(), device="cpu")
        ours = LayerAttnPoolEncoder.from_pretrained(
            minilm_folder(), pooler="mean", max_seq_length=theirs.max_seq_length
        )
        return theirs, ours

    def test_are_equal(self, pair: tuple[Any, LayerAttnPoolEncoder]) -> None:
        theirs, ours = pair
        # Their folder ends in a module that normalises.
        expected = theirs.encode(self.TEXTS)
        assert close(ours.encode(self.TEXTS, normalize_embeddings=True), expected, atol=1e-6)
        single = theirs.encode(self.TEXTS[0])
        assert close(ours.encode(self.TEXTS[0], normalize_embeddings=True), single, atol=1e-6)

    def test_are_equal_with_a_prompt_and_cut(self, pair: tuple[Any, LayerAttnPoolEncoder]) -> None:
        theirs, ours = pair
        options = {"prompt": "query: ", "truncate_dim": 100, "normalize_embeddings": True, "batch_size": 2}
        assert close(ours.encode(self.TEXTS, **options), theirs.encode(self.TEXTS, **options), atol=1e-6)
