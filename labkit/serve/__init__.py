"""The engine behind an API that existing clients speak: OpenAI's, over HTTP. `labkit serve` runs it.

async_engine            an engine for event loops: requests come from any thread, outputs go to their readers
engine_thread           the one thread that touches an engine
engine_process          the same in a separate process
app, gate, service      the web application; checks before each request; state shared by all answers
completions, embeddings the endpoints; protocol, errors: their schemas and errors; streaming: their event streams
metrics, settings       counters, and every limit
loading                 the model, where the engine runs
server                  uvicorn, and signals
"""
