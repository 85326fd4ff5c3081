"""A conversation as the text that a model was trained on: by the template in its folder, a program in Jinja.

    template = ChatTemplate.of(folder)           # None where the model has none
    template.render([{"role": "user", "content": "What is a hacker?"}])

The library transformers runs it, in Jinja's sandbox: a template comes with a model, from its author.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit._common.errors import UserError, short
from labkit._common.files import read_json, read_text

TOKENIZER_CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
ROLES = ("system", "user", "assistant")


def special_tokens(config: dict) -> dict[str, str]:
    """The special tokens by name, such as bos_token, of what a tokenizer_config.json says."""
    tokens = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens


@dataclass(frozen=True)
class ChatTemplate:
    """path: the file it is from. tokens: the special tokens by name, such as bos_token, which a template may use."""

    path: Path
    text: str
    tokens: dict[str, str]

    @classmethod
    def of(cls, folder: Path) -> ChatTemplate | None:
        """Load chat_template.jinja, or else the template in tokenizer_config.json. Raise ValueError if that is no valid
        template."""
        config = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
        tokens = special_tokens(config)
        if (folder / TEMPLATE).is_file():
            return cls(folder / TEMPLATE, read_text(folder / TEMPLATE), tokens)
        template = config.get("chat_template")
        if isinstance(template, list):  # several by name
            template = next((entry.get("template") for entry in template if isinstance(entry, dict)
                             and entry.get("name") == "default"), template)
        if template is None:
            return None
        if not isinstance(template, str):
            raise ValueError(f"{folder / TOKENIZER_CONFIG}: chat_template must be a text, or a list of which one is "
                             f"called default; it is {short(template)}")
        return cls(folder / TOKENIZER_CONFIG, template, tokens)

    def render(self, messages: Sequence[dict]) -> str:
        """Return the text of a conversation, up to where the model's answer begins. messages: {"role": ..., "content":
        ...} each. Raise UserError if it is no conversation, or the template refuses it."""
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise UserError(f"the conversation is {short(messages)}; it must be a list of messages, each a dictionary "
                            f"with the texts role and content")
        for index, message in enumerate(messages):
            if not isinstance(message, dict) or not all(isinstance(message.get(key), str)
                                                        for key in ("role", "content")):
                raise UserError(f"message {index} is {short(message)}; it must be a dictionary with the texts role "
                                f"and content")
            if message["role"] not in ROLES:
                raise UserError(f"message {index} has the role {message['role']!r}; {', '.join(ROLES)} are allowed")
        if not messages:
            raise UserError("the conversation has no message")
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it says that it found no PyTorch
        with warnings.catch_warnings():  # tqdm's, in a notebook without widgets
            warnings.simplefilter("ignore")
            from transformers.utils.chat_template_utils import render_jinja_template

        try:
            (text,), _ = render_jinja_template([list(messages)], chat_template=self.text, add_generation_prompt=True,
                                               **self.tokens)
        except Exception as error:  # of a program that may do anything the sandbox allows
            raise UserError(f"{self.path}: the chat template fails: {error}") from None
        return text
