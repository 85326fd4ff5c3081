"""Chat templates: where they are read from, what they make of a conversation, and what is refused."""

import json

import pytest

from labkit._common.errors import UserError
from labkit.models.chat import ChatTemplate

TEMPLATE = ("{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}"
            "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
TOKENS = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}}
MESSAGES = [{"role": "user", "content": " What is a hacker? "}]
TEXT = "<s><|user|>What is a hacker?</s><|assistant|>"


def write(folder, **entries):
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENS | entries))
    return folder


def test_from_the_tokenizers_configuration(tmp_path):
    template = ChatTemplate.of(write(tmp_path, chat_template=TEMPLATE))
    assert template.tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert template.render(MESSAGES) == TEXT


def test_of_several_the_one_called_default(tmp_path):
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": TEMPLATE}]
    assert ChatTemplate.of(write(tmp_path, chat_template=several)).render(MESSAGES) == TEXT


def test_a_file_of_its_own_comes_first(tmp_path):
    (write(tmp_path, chat_template="another") / "chat_template.jinja").write_text(TEMPLATE)
    assert ChatTemplate.of(tmp_path).render(MESSAGES) == TEXT


def test_there_may_be_none(tmp_path):
    assert ChatTemplate.of(tmp_path) is None
    assert ChatTemplate.of(write(tmp_path)) is None


@pytest.mark.parametrize("wrong", [3, [{"name": "tool_use", "template": "tools"}], {"default": TEMPLATE}])
def test_what_is_no_template(tmp_path, wrong):
    with pytest.raises(ValueError, match="tokenizer_config.json: chat_template must be a text, or a list"):
        ChatTemplate.of(write(tmp_path, chat_template=wrong))


@pytest.mark.parametrize(("text", "message"), [
    ("{{ raise_exception('roles must alternate') }}", "roles must alternate"), ("{% for %}", "Expected an expression"),
    ("{{ ''.__class__.__mro__ }}", "unsafe"), ("{{ messages.append(1) }}", "unsafe"),
    ("{{ messages[7].content }}", "has no element 7"),
])  # fmt: skip
def test_a_template_that_fails_is_named(tmp_path, text, message):
    with pytest.raises(UserError, match=f"tokenizer_config.json: the chat template fails: .*{message}"):
        ChatTemplate.of(write(tmp_path, chat_template=text)).render(MESSAGES)


@pytest.mark.parametrize(("messages", "message"), [
    ([], "has no message"), ("hello", "the conversation is 'hello'; it must be a list"),
    (MESSAGES[0], "the conversation is {'role'"),
    ([{"role": "user"}], "message 0 is .* a dictionary with the texts role and content"),
    ([*MESSAGES, "hello"], "message 1 is 'hello'"), ([{"role": "hacker", "content": ""}], "has the role 'hacker'; "),
])  # fmt: skip
def test_what_is_no_conversation(tmp_path, messages, message):
    with pytest.raises(UserError, match=message):
        ChatTemplate.of(write(tmp_path, chat_template=TEMPLATE)).render(messages)
