"""Checks of what a caller passes in. Each error begins with the parameter's name, and says what it is and may be.

    integer("n", value, 1, 1_024)              # an int, or TypeError or ValueError
    boolean("ignore_eos", value)               # a bool
    token_ids("prompt", value, vocab_size)     # a list of ints
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real

import numpy as np

from labkit._common.errors import short


def is_integer(value) -> bool:
    """NumPy's integers count as integers; booleans do not."""
    return type(value) is int or isinstance(value, Integral) and not isinstance(value, bool)


def integer(name: str, value, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return value as an int. Raise TypeError if it is no whole number, ValueError if it is out of range."""
    if not is_integer(value):
        raise TypeError(f"{name} is {short(value)}; it must be a whole number")
    value = int(value)
    if minimum is not None and value < minimum or maximum is not None and value > maximum:
        allowed = f"{minimum} or more" if maximum is None else f"from {minimum} to {maximum:,}"
        raise ValueError(f"{name} is {short(value)}; it must be {allowed}")
    return value


def number(name: str, value, is_allowed: Callable[[float], bool], allowed: str) -> float:
    """Return value as a float. allowed: in words, what `is_allowed` accepts. Raise TypeError if it is no number,
    ValueError for one that is not allowed."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} is {short(value)}; it must be a number, {allowed}")
    if not is_allowed(value):
        raise ValueError(f"{name} is {short(value)}; it must be {allowed}")
    return float(value)


def boolean(name: str, value) -> bool:
    """Return value as a bool. Raise TypeError for anything but a boolean, NumPy's included."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {short(value)}; it must be True or False")
    return bool(value)


def is_list(value) -> bool:
    """Neither bytes nor a memoryview count as a list."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def token_ids(name: str, value, vocab_size: int | None = None) -> list[int]:
    """Return a list, or an array of one axis, as a list of ints. Raise TypeError for anything else than token ids,
    ValueError for one that the model does not have; with vocab_size None, for one below 0."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if not is_list(value):
        raise TypeError(f"{name} is {short(value)}; it must be a list of token ids")
    for token in value:
        if not is_integer(token):
            raise TypeError(f"{name} has {short(token)}; a token id must be a whole number")
        if token < 0 or vocab_size is not None and token >= vocab_size:
            allowed = ("token ids are 0 or more" if vocab_size is None else
                       f"tokens of this model are from 0 to {vocab_size - 1:,}")
            raise ValueError(f"{name} has the token {short(int(token))}; {allowed}")
    return list(map(int, value))


def parts_of_prompt(prompt, encode) -> tuple[str | None, object]:
    """Return a prompt's text, if it has one, and what should be its token ids. encode: a text's token ids; None where
    there is no tokenizer. The prompt may be a text, token ids or {"prompt": text, "prompt_token_ids": ids}, where one
    of the two may be left out."""
    if isinstance(prompt, dict):
        unknown = [key for key in prompt if key not in ("prompt", "prompt_token_ids")]
        if unknown or not prompt:
            raise ValueError(f"prompt is {short(prompt)}; its keys must be prompt, prompt_token_ids or both")
        text = prompt.get("prompt")
        if text is not None and not isinstance(text, str):
            raise TypeError(f"prompt is {short(prompt)}; the value of its key prompt must be a text")
        if "prompt_token_ids" in prompt:
            return text, prompt["prompt_token_ids"]
        prompt = text
    if isinstance(prompt, str):
        if encode is None:
            raise ValueError("the prompt is a text; without a tokenizer it must be token ids")
        return prompt, encode(prompt)
    if not (is_list(prompt) or isinstance(prompt, np.ndarray)):
        raise TypeError(f"prompt is {short(prompt)}; it must be a text, a list of token ids, "
                        f"{{\"prompt\": text}} or {{\"prompt_token_ids\": ids}}")
    return None, prompt
