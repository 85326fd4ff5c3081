"""What an engine's process imports."""

import subprocess
import sys

import pytest


@pytest.mark.sweep(every=True)
def test_an_engines_process_needs_no_web_framework():
    code = ("import sys, labkit.serve.engine_process, labkit.serve.loading, labkit.engine.load_runner\n"
            "print(sorted({'fastapi', 'starlette', 'uvicorn', 'pydantic'} & set(sys.modules)))")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr
