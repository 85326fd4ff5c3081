"""`labkit serve` with the fake model, as a process of its own: python -m tests.serve.fake_server SECONDS ENGINE.
It loads for so many seconds, in a `process` or in a `thread` of this one."""

import os
import sys
import time

from labkit.serve import server
from labkit.serve.engine_thread import EngineThread
from labkit.serve.settings import Settings
from tests.serve.serving import fake_engine


def load(settings, doing):
    doing("kernels are being compiled, 1 of 2")
    time.sleep(float(os.environ["LOADS_S"]))
    thread = EngineThread(fake_engine(), settings.max_waiting)
    thread.delay_s = 0.05
    thread.start()
    return thread


def say(line):
    print(line, flush=True)


if __name__ == "__main__":  # the engine's process imports it as well
    os.environ["LOADS_S"] = sys.argv[1]
    server.run(Settings(port=0, engine_process=sys.argv[2] == "process"), say=say, ready=say, doing=say, load=load)
