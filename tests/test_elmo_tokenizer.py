"""The tokenizer of ELMo: splitting, spelling, padding, pairs, words for the language model, and saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_elmo import TEXTS, elmo_tokenizer
from transformers import DataCollatorWithPadding

from modeling_hire.configuration_elmo_characters import boundary, spell, unspell
from modeling_hire.tokenization_elmo import ElmoTokenizer


class TestSpelling:
    def test_as_the_original_counts(self) -> None:
        # Beginning 258, bytes, end 259, filling 260 there; one more here, with 0 for padding.
        assert spell("cat") == [259, 100, 98, 117, 260] + [261] * 45
        assert boundary(257)[:4] == [259, 257, 260, 261]

    def test_non_ascii_by_its_bytes(self) -> None:
        assert spell("é", 6) == [259, 0xC3 + 1, 0xA9 + 1, 260, 261, 261]
        assert unspell(spell("naïve €5 😀")) == "naïve €5 😀"

    @pytest.mark.parametrize("token", ["x" * 48, "x" * 49, "x" * 500, "é" * 30, "😀" * 20])
    def test_long_tokens_are_cut(self, token: str) -> None:
        ids = spell(token)
        assert len(ids) == 50 and ids[0] == 259 and ids[-1] == 260
        assert [index - 1 for index in ids[1:-1]] == list(token.encode()[:48])

    def test_broken_unicode(self) -> None:
        assert len(spell("\ud800")) == 50 and spell("", 5) == [259, 260, 261, 261, 261]

    def test_decodes_what_was_cut(self) -> None:
        assert unspell(spell("é" * 30)) == "é" * 24
        assert unspell(spell("x" + "é" * 30)).endswith("\ufffd")


class TestSplitting:
    @pytest.mark.parametrize(
        ("text", "tokens"),
        [
            ("The cat.", "The cat ."),
            ("He didn't, she's", "He didn 't , she 's"),
            ("the U.S. and e.g. Ms. A.", "the U.S. and e.g. Ms . A ."),
            ("well-known 1,000.50 (a_b)...", "well-known 1,000.50 ( a_b ) ..."),
            ("“Ça va?!” — oui…", "“ Ça va ? ! ” — oui …"),
            ("नमस्ते दुनिया।", "नमस्ते दुनिया ।"),
            ("e\u0301te\u0301, no\u200dn", "e\u0301te\u0301 , no\u200dn"),
            (" \t\n\u00a0", ""),
        ],
    )
    def test_at_punctuation(self, text: str, tokens: str) -> None:
        assert ElmoTokenizer().tokenize(text) == tokens.split(" ") * bool(tokens)

    def test_at_white_space(self) -> None:
        assert ElmoTokenizer(splitting="whitespace").tokenize("Don 't  stop!") == ["Don", "'t", "stop!"]

    def test_given_tokens_stay(self) -> None:
        tokenizer = elmo_tokenizer()
        ids = tokenizer(["U.S.", "stop!", "a b"], is_split_into_words=True)["input_ids"]
        assert tokenizer.convert_ids_to_tokens(ids) == ["U.S.", "stop!", "a b"]
        batch = tokenizer([["U.S."], ["stop!", "a b"]], is_split_into_words=True)
        assert [len(row) for row in batch["input_ids"]] == [1, 2]

    def test_names_of_marks_are_text(self) -> None:
        tokenizer = elmo_tokenizer()
        assert tokenizer.tokenize("<S> <PAD>") == ["<", "S", ">", "<", "PAD", ">"]
        given = tokenizer(["<S>", "<PAD>"], is_split_into_words=True, return_labels=True)
        assert given["input_ids"][0] == spell("<S>") and given["input_ids"][1] == spell("<PAD>")
        assert given["labels"] == [1, 1, 3]


class TestBatches:
    def test_pads_either_side(self) -> None:
        tokenizer = elmo_tokenizer()
        alone = [tokenizer(text)["input_ids"] for text in TEXTS]
        for side in ("right", "left"):
            batch = tokenizer(list(TEXTS), padding=True, padding_side=side, return_tensors="pt")
            assert batch["input_ids"].shape == (4, max(map(len, alone)), 50)
            assert torch.equal(batch["attention_mask"] != 0, (batch["input_ids"] != 0).any(dim=2))
            for row, ids in enumerate(alone):
                real = batch["attention_mask"][row] != 0
                assert batch["input_ids"][row][real].tolist() == ids
                assert real[0 if side == "right" else -1]

    def test_pairs(self) -> None:
        tokenizer = elmo_tokenizer()
        for pairs in ((["A b.", "C"], ["D", "E f"]), ([("A b.", "D"), ("C", "E f")],)):
            batch = tokenizer(*pairs, padding=True)
            assert batch["token_type_ids"] == [[0, 0, 0, 1], [0, 1, 1, 0]]
            assert batch["attention_mask"] == [[1, 1, 1, 1], [1, 1, 1, 0]]
            assert tokenizer.decode(batch["input_ids"], skip_special_tokens=True) == ["A b . D", "C E f"]

    def test_truncates_the_longer_text(self) -> None:
        tokenizer = elmo_tokenizer()
        batch = tokenizer(["a b c d e", "a"], ["x y", "x y z"], truncation=True, max_length=3)
        assert tokenizer.decode(batch["input_ids"]) == ["a b x", "a x y"]
        assert batch["token_type_ids"] == [[0, 0, 1], [0, 1, 1]]
        assert len(tokenizer("a b c", truncation=True, max_length=2)["input_ids"]) == 2
        first = tokenizer("a b c d", "x", truncation="only_first", max_length=3)
        assert tokenizer.decode(first["input_ids"]) == "a b x"

    @pytest.mark.parametrize("as_type", [list, np.array, torch.tensor], ids=["list", "numpy", "torch"])
    def test_collates_rows(self, as_type: Any) -> None:
        tokenizer = elmo_tokenizer()
        rows = [tokenizer(text) for text in TEXTS]
        rows = [{name: as_type(value) for name, value in row.items()} | {"labels": 1} for row in rows]
        batch = DataCollatorWithPadding(tokenizer)(rows)
        expected = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
        assert batch["labels"].tolist() == [1, 1, 1, 1]
        for name, value in expected.items():
            assert torch.equal(batch[name], value), name

    def test_multiples_and_fixed_lengths(self) -> None:
        tokenizer = elmo_tokenizer()
        assert tokenizer(["a b c"], padding=True, pad_to_multiple_of=4, return_tensors="pt")["input_ids"].shape[1] == 4
        settings = {"padding": "max_length", "max_length": 6, "truncation": True, "return_tensors": "pt"}
        assert tokenizer(["a b c", "a b c d e f g"], **settings)["input_ids"].shape == (2, 6, 50)

    def test_empty_texts(self) -> None:
        tokenizer = elmo_tokenizer()
        assert tokenizer("")["input_ids"] == [] and tokenizer([])["input_ids"] == []
        for texts in ("", [""], ["", " "]):
            batch = tokenizer(texts, padding=True, return_tensors="pt")
            assert batch["input_ids"].shape[1:] == (1, 50) and not batch["attention_mask"].any()
        assert tokenizer("", return_tensors="pt")["input_ids"].shape == (1, 1, 50)
        assert tokenizer(["", "a"], padding=True)["attention_mask"] == [[0], [1]]

    def test_a_single_text_and_tensors(self) -> None:
        assert elmo_tokenizer()("The cat", return_tensors="pt")["input_ids"].shape == (1, 2, 50)
        assert elmo_tokenizer()("The cat", "A dog", return_tensors="np")["token_type_ids"].tolist() == [[0, 0, 1, 1]]

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            ((["a", 3],), r"text=3: allowed is a text, or a pair of texts"),
            ((["a"], ["b", "c"]), r"text_pair with 2 texts: allowed are as many as in text, 1"),
            ((["a"], "b"), r"text_pair with one text"),
        ],
    )
    def test_refuses(self, texts: tuple, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            elmo_tokenizer()(*texts)


class TestWords:
    def test_by_falling_frequency(self) -> None:
        tokenizer = ElmoTokenizer.build(["b a c", "a b b"], vocab_size=6)
        assert tokenizer.words == {"<PAD>": 0, "<UNK>": 1, "<S>": 2, "</S>": 3, "b": 4, "a": 5}
        assert (tokenizer.vocab_size, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id) == (6, 6, 0, 3)
        assert tokenizer.convert_tokens_to_ids(["a", "c"]) == [5, 1]
        assert ElmoTokenizer.build(["b a c", "a b b"], min_count=2).vocab_size == 6
        assert ElmoTokenizer.build([["b", "a"], ["b\n", "<UNK>"]]).vocab_size == 6

    def test_labels(self) -> None:
        tokenizer = ElmoTokenizer.build(["b a c", "a b b"], vocab_size=6)
        batch = tokenizer(["a b zz", "b"], return_labels=True, padding=True)
        assert batch["labels"] == [[5, 4, 1, 3], [4, 3, -100, -100]]
        rows = [tokenizer(text, return_labels=True) for text in ("a b zz", "b")]
        batch = tokenizer.pad(rows, padding_side="left")
        assert batch["labels"] == [[5, 4, 1, 3], [-100, -100, 4, 3]]
        assert tokenizer.decode(batch["labels"][0]) == "a b <UNK> </S>"

    def test_lower_case_for_the_look_up_only(self) -> None:
        tokenizer = ElmoTokenizer.build(["The the"], lowercase=True)
        assert tokenizer("The", return_labels=True)["labels"] == [4, 3]
        assert tokenizer.decode(tokenizer("The")["input_ids"]) == "The"

    def test_no_labels_of_pairs(self) -> None:
        with pytest.raises(ValueError, match="return_labels=True with a pair of texts"):
            elmo_tokenizer()("a", "b", return_labels=True)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"vocab_size": 4}, "vocab_size=4: allowed is a whole number above 4"),
            ({"min_count": 0}, "min_count=0"),
            ({"min_count": 9}, "no word occurs 9 times"),
            ({"max_characters": 2}, "max_characters=2"),
            ({"splitting": "words"}, "splitting='words': allowed is one of 'punctuation', 'whitespace'"),
            ({"lowercase": "no"}, "lowercase='no'"),
        ],
    )
    def test_refuses(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            ElmoTokenizer.build(TEXTS, **settings)

    def test_a_corpus_of_empty_lines(self) -> None:
        with pytest.raises(ValueError, match="no word occurs 1 times or more"):
            ElmoTokenizer.build(["", "  ", "\n"])


class TestSaving:
    def test_survives(self, tmp_path: Path) -> None:
        tokenizer = elmo_tokenizer(max_characters=20, splitting="whitespace", padding_side="left")
        files = {Path(file).name for file in tokenizer.save_pretrained(tmp_path)}
        assert "words.txt" in files
        assert {"tokenization_elmo.py", "tokenization_elmo_words.py", "configuration_elmo_characters.py"} <= {
            path.name for path in tmp_path.iterdir()
        }
        again = ElmoTokenizer.from_pretrained(tmp_path)
        assert again.words == tokenizer.words and again.get_vocab() == tokenizer.get_vocab()
        assert (again.max_characters, again.splitting, again.padding_side) == (20, "whitespace", "left")
        assert again(list(TEXTS), padding=True).data == tokenizer(list(TEXTS), padding=True).data

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"a\nb\n", "first lines are <PAD>, <UNK>, <S>, </S>, here a, b"),
            (b"<PAD>\n<UNK>\n<S>\n</S>\na\na\n", "'a' is there again"),
            (b"<PAD>\xff", "cannot be read as UTF-8"),
            (None, "cannot be read as UTF-8 text .*No such file"),
        ],
    )
    def test_refuses_files(self, tmp_path: Path, content: bytes | None, message: str) -> None:
        if content is not None:
            (tmp_path / "words.txt").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            ElmoTokenizer(vocab_file=tmp_path / "words.txt")
