"""`labkit serve` with the fake model, as a process of its own: python -m tests.serve.fake_server. It loads for as many
seconds as its argument says."""

import sys
import time

from labkit.serve import server
from labkit.serve.engine_thread import EngineThread
from labkit.serve.settings import Settings
from tests.serve.serving import fake_engine


def load(settings, doing):
    doing("kernels are being compiled, 1 of 2")
    time.sleep(float(sys.argv[1]))
    thread = EngineThread(fake_engine(), settings.max_waiting)
    thread.delay_s = 0.05
    thread.start()
    return thread, None


def say(line):
    print(line, flush=True)


server.run(Settings(port=0), say=say, ready=say, doing=say, load=load)
