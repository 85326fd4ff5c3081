"""A Llama of random numbers in a folder, as labkit.models.load takes it: with a tokenizer of bytes, and a template for
conversations where one is wanted."""

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file

from labkit.models.configs import shapes
from labkit.models.llama import Config

MARKS = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")  # tokens 0 to 3; the first stands before every text
TEMPLATE = ("{{ bos_token }}{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}"
            "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
SMALL = {"vocab_size": 301, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 128,
         "rms_norm_eps": 1e-5, "tie_word_embeddings": True}


def write_folder(folder: Path, shape=SMALL, template: str | None = TEMPLATE, seed: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config, rng = Config(**shape), np.random.default_rng(seed)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": [0, 3]} | shape))
    save_file({f"model.{name}": (rng.standard_normal(size) / np.sqrt(size[-1]) if len(size) > 1 else np.ones(size))
               .astype(np.float32) for name, size in shapes(config).items()}, folder / "model.safetensors")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(["a kernel is a loop"], tokenizers.trainers.BpeTrainer(
        vocab_size=config.vocab_size, special_tokens=list(MARKS), show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=f"{MARKS[0]} $A",
                                                                        special_tokens=[(MARKS[0], 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    if template:
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": MARKS[0], "chat_template": template}))
    return folder
