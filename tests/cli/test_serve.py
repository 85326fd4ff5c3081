"""labkit serve: what it is asked for and what stops it; and the command itself, with clients."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading

import openai
import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit._common.paths import REPOSITORY
from labkit.serve import server


@pytest.fixture
def labkit(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    runner = CliRunner()
    return lambda *arguments, **options: runner.invoke(cli.app, ["serve", *arguments], **options)


def test_options_become_settings(labkit, monkeypatch):
    asked = []

    def run(settings, say, ready, doing):
        asked.append(settings)
        doing("kernels are being compiled, 1 of 2; they are kept")
        doing("kernels are being compiled, 2 of 2; they are kept")
        say("listens")
        ready("serves")

    monkeypatch.setattr(server, "run", run)
    done = labkit("--model", "folder", "--host", "0.0.0.0", "--port", "0", "--max-num-seqs", "3", "--max-model-len",
                  "99", "--max-waiting", "5", "--max-num-batched-tokens", "64", "--max-connections", "6",
                  "--engine-process", "--deadline", "7", "--allow-origin", "http://a", "--allow-origin", "http://b",
                  env={"LABKIT_API_KEY": "from the environment".replace(" ", "-")})
    assert done.exit_code == 0, done.output
    (settings,) = asked
    assert (settings.model, settings.host, settings.port, settings.max_num_seqs, settings.max_model_len,
            settings.max_waiting, settings.max_num_batched_tokens, settings.max_connections, settings.engine_process,
            settings.deadline_s, settings.allow_origins, settings.api_key) == (
        "folder", "0.0.0.0", 0, 3, 99, 5, 64, 6, True, 7.0, ("http://a", "http://b"), "from-the-environment")
    assert done.output.splitlines() == ["kernels are being compiled", "listens", "serves"]
    assert labkit(env={"LABKIT_API_KEY": ""}).exit_code == 0 and asked[-1].host == "127.0.0.1"


def test_wrong_use_is_a_sentence(labkit, monkeypatch):
    for arguments, words in (
            (("--model", "no/such/folder/at/all", "--port", "0"), "no/such/folder/at/all"),
            (("--model", "tiny", "--port", "0"), "tiny is a GPT2; the engine runs Llama and Qwen3"),
            (("--host", "999.1.1.1"), "cannot listen on 999.1.1.1"),
            (("--api-key", " "), "the API key must be printable ASCII")):
        done = labkit(*arguments)
        assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fastapi" else found(name))
    done = labkit()
    assert done.exit_code == 2 and "serving needs fastapi: pip install -e '.[serve]'" in done.output


@pytest.mark.sweep
@pytest.mark.skipif(os.name != "posix", reason="no signals but Ctrl-C on this system")
def test_the_command_serves_tiny_llama_to_openais_client():
    child = subprocess.Popen([sys.executable, "-m", "labkit", "serve", "--port", "0", "--device", "cpu"],
                             cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                             env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LABKIT_API_KEY": "key"})
    stopper = threading.Timer(300, child.kill)
    stopper.start()
    try:
        lines = iter(child.stdout.readline, "")
        where = next(match[1] for line in lines if (match := re.search(r" at (http://\S+?/v1)\b", line)))
        with openai.OpenAI(base_url=where, api_key="key", timeout=120) as client:
            names = [model.id for model in client.models.list()]
            answer = client.chat.completions.create(
                model="tiny-llama", messages=[{"role": "user", "content": "What is a hacker?"}], temperature=0,
                max_tokens=8)
            assert names[0] == "tiny-llama" and answer.choices[0].message.content.startswith("A person who enjoys")
            if "minilm" in names:
                near, far = (client.embeddings.create(model="minilm", input=[text, "Why is my kernel slow?"]).data
                             for text in ("What makes a GPU program wait?", "a recipe for soup"))
                cosines = [sum(a * b for a, b in zip(pair[0].embedding, pair[1].embedding, strict=True))
                           for pair in (near, far)]
                assert cosines[0] > cosines[1] + 0.1
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    finally:
        stopper.cancel()
        child.kill()
        child.wait()
        child.stdout.close()
