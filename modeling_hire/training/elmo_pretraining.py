"""Pre-training runs of ELMo: `run_meta_pretrain.py` with an ELMo encoder."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..configuration_elmo import ElmoConfig
from ..configuration_layerwise import check_known_fields
from ..data.episodes import MetaTask
from ..data.language_models import language_model_task
from ..data.meta_arguments import MetaDataArguments
from ..data.pretraining import LANGUAGE_MODELS
from ..modeling_elmo import ElmoForPreTraining
from ..modeling_encoder_layers import reading_weights
from ..tokenization_elmo import ElmoTokenizer
from .meta_arguments import MetaTrainingArguments, MultiTaskArguments
from .models import LANGUAGE_MODEL, load_source
from .pretraining import Pretraining, sentences_of


class ElmoPretraining(Pretraining):
    """The two language models of ELMo, learnt from text in episodes."""

    head = LANGUAGE_MODEL
    objectives = default_objectives = LANGUAGE_MODELS

    def __init__(self, data_arguments: MetaDataArguments, arguments: MetaTrainingArguments, config: PreTrainedConfig):
        if data_arguments.tasks:
            raise ValueError(
                f"tasks={data_arguments.tasks!r}: labelled tasks share an encoder of transformers; ELMo learns from "
                "text alone (corpus_file or corpus_name)."
            )
        super().__init__(data_arguments, arguments, config)

    @classmethod
    def start(
        cls, model_arguments: MultiTaskArguments, data_arguments: MetaDataArguments
    ) -> tuple[str, PreTrainedConfig, PreTrainedTokenizerBase]:
        """A checkpoint and its words; where it has none, or is a new one, words are taken from the text."""
        refuse_other_models(model_arguments)
        vocab_size = model_arguments.vocab_size
        if model_arguments.new_encoder is None:
            checkpoint, config, tokenizer = load_source(model_arguments, cls.head)
            if config.vocab_size is None:
                settings = {name: getattr(tokenizer, name) for name in ("max_characters", "splitting", "lowercase")}
                tokenizer = ElmoTokenizer.build(sentences_of(data_arguments), vocab_size, **settings)
                config.vocab_size = tokenizer.vocab_size
            return checkpoint, config, tokenizer
        fields = model_arguments.encoder_fields or {}
        check_known_fields(ElmoConfig, fields)
        if "vocab_size" in fields:
            raise ValueError("encoder_fields['vocab_size']: the words are taken from the text; set vocab_size.")
        ElmoConfig(**fields)  # what is wrong with it is found before the text is read
        characters = {"max_characters": fields["max_characters"]} if "max_characters" in fields else {}
        tokenizer = ElmoTokenizer.build(sentences_of(data_arguments), vocab_size, **characters)
        return "", ElmoConfig(**fields, vocab_size=tokenizer.vocab_size), tokenizer

    def text_task(
        self, documents: Iterator[list[str]], tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> MetaTask:
        return language_model_task(documents, tokenizer, self.objectives, max_length)

    def check_heads(self, model: PreTrainedModel) -> None:
        """Both language models are there always."""

    def parts(self, model: PreTrainedModel) -> dict[str, PreTrainedModel]:
        return {"encoder": model.elmo}

    def build(
        self, model_arguments: MultiTaskArguments, checkpoint: str, config: PreTrainedConfig, base: str | None
    ) -> tuple[PreTrainedModel, set[str]]:
        config, new = copy.deepcopy(config), set()
        if checkpoint:
            loading = {"revision": model_arguments.encoder_revision, "dtype": torch.float32, "use_safetensors": True}
            try:
                with reading_weights(checkpoint, "ElmoForPreTraining"):
                    model, info = ElmoForPreTraining.from_pretrained(
                        checkpoint, config=config, output_loading_info=True, **loading
                    )
            except OSError as error:
                raise ValueError(f"{checkpoint}: {str(error).strip().splitlines()[0]}") from error
            new = set(info["missing_keys"])
        else:
            model = ElmoForPreTraining(config)
        # A local folder would be written into the configuration.
        model.name_or_path = model.config._name_or_path = base or ""
        return model, new


def refuse_other_models(arguments: MultiTaskArguments) -> None:
    """Raise a `ValueError` for what only encoders of transformers can be or do."""
    if not arguments.is_new:
        raise ValueError(
            f"model={arguments.model!r}: a checkpoint of type 'elmo'; allowed is to go on from it with --encoder "
            f"{arguments.model}."
        )
    plain = MultiTaskArguments(new_encoder="elmo")
    for name in ("layer_plan", "duplicate", "attn_implementation", "freeze_encoder", "peft"):
        value = getattr(arguments, name)
        if value != getattr(plain, name):
            raise ValueError(f"{name}={value!r}: not for ELMo, which has neither attention nor layers to move.")
