"""The engine behind an API that existing clients speak: OpenAI's, over HTTP. `labkit serve` runs it.

engine_thread           the one thread that touches an engine; requests come from others, outputs go to event loops
engine_process          the same in a process of its own
app, gate, service      the web application; what each request passes first; what all answers share
completions, embeddings what is answered; protocol, errors: in which words; streaming: as it comes
metrics, settings       what is counted, and every limit
server                  uvicorn, the loading of the model, and signals
"""
