"""Configurations of ELMo: what is refused, and that they survive saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_elmo import SIZES, tiny_elmo, tiny_elmo_config

from modeling_hire.configuration_elmo import ElmoConfig


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_characters": 261}, "num_characters=261: allowed is a whole number, 262 or more"),
    ({"max_characters": 2}, "max_characters=2: allowed is a whole number, 3 or more"),
    ({"filters": []}, r"filters=\[\]: allowed is a list of \[width, number\] pairs"),
    ({"filters": [[51, 4]]}, r"filters=\[\[51, 4\]\]: .* widths from 1 to max_characters=50"),
    ({"filters": [[1, 4, 2]]}, "filters="),
    ({"character_activation": "rel"}, "character_activation='rel': .* Did you mean 'relu'"),
    ({"num_highway_layers": -1}, "num_highway_layers=-1: allowed is a whole number, 0 or more"),
    ({"cell_size": 0}, "cell_size=0: allowed is a positive whole number"),
    ({"projection_size": 10}, "projection_size=10: allowed is a whole number below cell_size=10"),
    ({"num_hidden_layers": 1.5}, "num_hidden_layers=1.5"),
    ({"cell_clip": 0}, "cell_clip=0: allowed is a positive number, or None"),
    ({"proj_clip": float("nan")}, "proj_clip=nan"),
    ({"use_skip_connections": 1}, "use_skip_connections=1: allowed is one of True, False"),
    ({"stateful": "yes"}, "stateful='yes'"),
    ({"dropout": 1.0}, "dropout=1.0: allowed is a number from 0 up to, not including, 1"),
    ({"vocab_size": 3}, "vocab_size=3: allowed is a whole number, 4 or more, or None"),
    ({"vocab_size": 9, "eos_token_id": 9}, "eos_token_id=9: allowed is a word id below vocab_size=9"),
    ({"softmax": "ful"}, "softmax='ful': .* Did you mean 'full'"),
    ({"softmax": "sampled", "vocab_size": 99}, "num_sampled_words=8192: allowed is a number below vocab_size=99"),
    ({"num_labels": 0}, "num_labels=0"),
    ({"hidden_size": 64}, "hidden_size=64: allowed is twice projection_size=6, which sets it"),
    ({"cell_cilp": 3.0}, "ElmoConfig has no field 'cell_cilp'. Did you mean 'cell_clip'"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=lambda value: value if isinstance(value, str) else None)
def test_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ElmoConfig(**(SIZES | fields))


def test_what_is_set_later_is_checked_when_built_and_when_saved(tmp_path: Path) -> None:
    config = tiny_elmo_config()
    config.cell_clip = -1.0
    with pytest.raises(ValueError, match=r"cell_clip=-1.0"):
        config.save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()
    model = tiny_elmo()
    with pytest.raises(ValueError, match=r"cell_clip=-1.0"):
        type(model)(config)


def test_survives_saving(tmp_path: Path) -> None:
    config = tiny_elmo_config(stateful=True, cell_clip=None, num_labels=3)
    config.save_pretrained(tmp_path)
    again = ElmoConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    assert again.hidden_size == 12 and again.filters == SIZES["filters"]
    assert ElmoConfig.from_pretrained(tmp_path, projection_size=5).hidden_size == 10


def test_original_sizes() -> None:
    config = ElmoConfig()
    assert sum(number for _, number in config.filters) == 2048
    assert (config.cell_size, config.projection_size, config.hidden_size) == (4096, 512, 1024)
