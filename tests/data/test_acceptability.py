"""The generated acceptability task: pairs, balance, splits, and no way to solve it by counting words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from modeling_hire.data import acceptability
from modeling_hire.data.acceptability import PHENOMENA, generate_acceptability, main, write_acceptability
from modeling_hire.data.acceptability_words import MEN, PEOPLE, TAKE, THINGS, parse_nouns, parse_words


Row = dict[str, str | int]


@pytest.fixture(scope="module")
def data() -> dict[str, list[Row]]:
    return generate_acceptability()


def words(row: Row) -> list[str]:
    return str(row["sentence"]).rstrip(".").lower().split()


def partners(row: Row, other: Row) -> bool:
    """Same words in another order, or the same but for one."""
    mine, theirs = words(row), words(other)
    different = sum(a != b for a, b in zip(mine, theirs, strict=False))
    return len(mine) == len(theirs) and (different == 1 or (different > 0 and Counter(mine) == Counter(theirs)))


def test_default_sizes_and_keys(data):
    assert {split: len(rows) for split, rows in data.items()} == {"train": 4000, "validation": 500}
    for rows in data.values():
        assert [row["idx"] for row in rows] == list(range(len(rows)))
        assert all(set(row) == {"sentence", "label", "phenomenon", "idx"} for row in rows)


def test_labels_are_balanced_in_each_phenomenon(data):
    for rows in data.values():
        counts = Counter((row["phenomenon"], row["label"]) for row in rows)
        assert {phenomenon for phenomenon, _ in counts} == set(PHENOMENA)
        assert all(counts[name, 0] == counts[name, 1] for name in PHENOMENA)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_no_sentence_appears_twice(data):
    sentences = [row["sentence"] for rows in data.values() for row in rows]
    assert len(sentences) == len(set(sentences))


def test_every_sentence_has_its_partner_in_the_same_split(data):
    for rows in data.values():
        candidates: dict[tuple, dict[int, list[Row]]] = defaultdict(lambda: {0: [], 1: []})
        for row in rows:
            # Only rows of one length and phenomenon can be partners: few to compare with.
            key = (row["phenomenon"], len(words(row)))
            candidates[key][row["label"]].append(row)
        for group in candidates.values():
            for row in group[1]:
                assert any(partners(row, other) for other in group[0]), row


def test_sentences_look_like_sentences(data):
    for rows in data.values():
        for row in rows:
            text = str(row["sentence"])
            assert text[0].isupper() and text.endswith(".") and text.count(".") == 1, text
            assert text == " ".join(text.split()) and text[1:] == text[1:].lower(), text
            assert all(first != second for first, second in zip(words(row), words(row)[1:], strict=False)), text
            assert "{" not in text and "/" not in text


def test_a_seed_gives_the_same_sentences_and_another_seed_others():
    first, again = generate_acceptability(60, 20, seed=3), generate_acceptability(60, 20, seed=3)
    other = generate_acceptability(60, 20, seed=4)
    assert first == again
    assert first["train"] != other["train"] and first["validation"] != other["validation"]


def test_the_sentences_of_a_seed_stay_the_same_over_versions():
    # Whoever quotes a result names the seed: a change of these sentences belongs into the change log.
    row = generate_acceptability(12, 12, seed=0)["validation"][0]
    sentence = "In this town no famous girls that the young dentist praised have ever apologized."
    assert row == {"sentence": sentence, "label": 1, "phenomenon": "npi_licensing", "idx": 0}


def test_validation_does_not_depend_on_the_number_of_training_rows():
    assert generate_acceptability(20, 40)["validation"] == generate_acceptability(2000, 40)["validation"]


def test_validation_has_words_that_training_never_saw(data):
    seen = {word for row in data["train"] for word in words(row)}
    unseen = [any(word not in seen for word in words(row)) for row in data["validation"]]
    assert 0.5 < sum(unseen) / len(unseen) < 0.95
    for group in (PEOPLE, THINGS, TAKE):
        assert seen.isdisjoint(form for forms in group.held_out for form in forms)
        # ... though not by words that it hardly has.
        assert len(group.held_out) < len(group.common)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("lowercase", [True, False])
def test_counting_words_does_not_solve_it(seed, lowercase):
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    data = generate_acceptability(seed=seed)
    vectorizer = CountVectorizer(lowercase=lowercase)
    train = vectorizer.fit_transform(row["sentence"] for row in data["train"])
    validation = vectorizer.transform(row["sentence"] for row in data["validation"])
    model = LogisticRegression(max_iter=500).fit(train, [row["label"] for row in data["train"]])
    assert 0.4 < model.score(validation, [row["label"] for row in data["validation"]]) < 0.65


def test_deciding_words_are_acceptable_half_of_the_time(data):
    labels: dict[str, list[int]] = defaultdict(list)
    for row in data["train"]:
        for word in words(row):
            labels[word].append(int(row["label"]))
    for word in "is are was were this these that those himself herself themselves no ever will had".split():
        assert len(labels[word]) > 50
        assert abs(sum(labels[word]) / len(labels[word]) - 0.5) < 0.12, word


def test_agreement_is_right_where_nothing_stands_between(data):
    for rows in data.values():
        short = [row for row in rows if row["phenomenon"] == "subject_verb_agreement" and len(words(row)) == 4]
        assert len(short) > 5
        for row in short:
            _, noun, verb, _ = words(row)
            if verb in ("is", "are"):
                plural = noun in {forms[1] for group in (PEOPLE, THINGS) for forms in group.common + group.held_out}
                assert row["label"] == (verb == ("are" if plural else "is")), row


def test_genders_are_right(data):
    men = {forms[0] for forms in MEN.common + MEN.held_out}
    for row in data["train"]:
        if row["phenomenon"] == "reflexive_gender" and len(words(row)) == 4:
            assert row["label"] == ((words(row)[1] in men) == (words(row)[3] == "himself")), row


def test_word_lists():
    assert parse_words("walk/walked | sing/sang").held_out == (("sing", "sang"),)
    nouns = parse_nouns("key, lady, box, wife/wives, bench, boy | man/men")
    assert nouns.common[1:5] == (("lady", "ladies"), ("box", "boxes"), ("wife", "wives"), ("bench", "benches"))
    assert nouns.common[5] == ("boy", "boys")
    with pytest.raises(ValueError, match=r"text='walk': must hold exactly one '\|'"):
        parse_words("walk")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_train": 0}, "num_train=0: must be an even number of at least 2"),
        ({"num_train": 7}, "num_train=7: must be an even"),
        ({"num_train": True}, "num_train=True"),
        ({"num_validation": -2}, "num_validation=-2: must be an even"),
        ({"num_validation": 2.0}, r"num_validation=2\.0"),
        ({"seed": "a"}, "seed='a': must be an integer"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate_acceptability(**arguments)


def test_says_when_the_grammar_has_no_more_sentences(monkeypatch):
    monkeypatch.setitem(acceptability._PHENOMENA, "verb_form", lambda pick: ("one thing", "one things"))
    with pytest.raises(ValueError, match=r"num_train=40: the grammar has no more new sentences for 'verb_form'"):
        generate_acceptability(40, 2)


def test_files_in_the_layout_of_the_script(tmp_path):
    paths = write_acceptability(tmp_path / "new", 40, 20, seed=1)
    assert paths == {split: tmp_path / "new" / "acceptability" / f"{split}.jsonl" for split in ("train", "validation")}
    assert {path.name for path in paths["train"].parent.iterdir()} == {"train.jsonl", "validation.jsonl"}
    for split, rows in generate_acceptability(40, 20, seed=1).items():
        assert [json.loads(line) for line in paths[split].read_text(encoding="utf-8").splitlines()] == rows


def test_existing_files_are_kept(tmp_path):
    paths = write_acceptability(tmp_path, 40, 20)
    times = {path: path.stat().st_mtime_ns for path in paths.values()}
    assert write_acceptability(tmp_path, 40, 20) == paths
    assert {path: path.stat().st_mtime_ns for path in paths.values()} == times
    paths["train"].unlink()
    with pytest.raises(FileExistsError, match=r"validation\.jsonl exists and holds other rows.*seed=5"):
        write_acceptability(tmp_path, 40, 20, seed=5)
    # Nothing written: neither the missing file nor a temporary one.
    assert [path.name for path in paths["validation"].parent.iterdir()] == ["validation.jsonl"]
    assert write_acceptability(tmp_path, 40, 20)["train"].exists()


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(source: str, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(acceptability.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_acceptability(tmp_path, 40, 20)
    assert list((tmp_path / "acceptability").iterdir()) == []


def test_command_line(tmp_path, capsys):
    main([str(tmp_path), "--num_train", "40", "--num_validation", "20", "--seed", "2"])
    assert "Generated sentences" in capsys.readouterr().out
    assert len((tmp_path / "acceptability" / "train.jsonl").read_text().splitlines()) == 40
    for wrong, message in (("--num_train=3", "num_train=3"), ("--seed=9", "exists and holds other rows")):
        with pytest.raises(SystemExit) as exit_info:
            main([str(tmp_path), "--num_train", "40", "--num_validation", "20", wrong])
        assert exit_info.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.slow
def test_module_runs(tmp_path):
    command = [sys.executable, "-W", "error", "-m", "modeling_hire.data.acceptability", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert len((tmp_path / "acceptability" / "validation.jsonl").read_text().splitlines()) == 500
