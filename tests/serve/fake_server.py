"""`labkit serve` with the fake model, as a process of its own: python -m tests.serve.fake_server SECONDS ENGINE
[RESTART]. It loads for so many seconds, in a `process` or in a `thread` of this one, and says in which. `tiny` is a
process with tiny-llama. RESTART: Settings.restart_s."""

import gc
import os
import sys
import time

from labkit.serve import loading, server
from labkit.serve.engine_thread import EngineThread
from labkit.serve.settings import Settings
from tests.serve.serving import fake_engine


def load(settings, doing):
    doing(f"in process {os.getpid()}")
    doing("kernels are being compiled, 1 of 2")
    time.sleep(float(os.environ["LOADS_S"]))
    thread = EngineThread(fake_engine())
    thread.control("delay_s", 0.05)
    thread.start()
    return thread


def load_tiny(settings, doing):
    doing(f"in process {os.getpid()}")
    thread = loading.load_model(settings, doing)
    doing(f"{gc.get_freeze_count()} objects are exempt from collections")
    thread.control("delay_s", 0.02)
    return thread


def say(line):
    print(line, flush=True)


if __name__ == "__main__":  # the engine's process imports it as well
    os.environ["LOADS_S"] = sys.argv[1]
    restart_s = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    server.run(Settings(port=0, engine_process=sys.argv[2] != "thread", restart_s=restart_s), say=say, ready=say,
               doing=say, load=load_tiny if sys.argv[2] == "tiny" else load)
