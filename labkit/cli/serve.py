"""The command serve."""

from typing import Annotated

import typer

from labkit._common.errors import UserError
from labkit.cli.shared import Device, Dtype, choose_device, consoles


def serve(
    model: Annotated[
        str, typer.Option("--model", help="tiny-llama, which is in the repository; a folder; or the name of a Llama or "
                                          "Qwen3 on the Hugging Face hub.")
    ] = "tiny-llama",
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; use 0.0.0.0 to allow other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port; 0 picks a free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="LABKIT_API_KEY", show_envvar=False,
                     help="The key that clients must send. You can also set the environment variable LABKIT_API_KEY, "
                          "which does not show up in process listings."),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", help="Sequences to run at a time; 256 on a GPU, else 16.",
                                 min=1)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option("--max-num-batched-tokens", help="Tokens per step, including prompts; 2,048 on a GPU, else 128. "
                                                      "A larger value raises throughput, but makes answers pause "
                                                      "longer while a prompt is processed.", min=1)
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", help="Maximum tokens in a prompt and its answer together.", min=2)
    ] = None,
    dtype: Dtype = "auto",
    one_kernel: Annotated[
        bool, typer.Option("--one-kernel", help="Compute a step of up to eight sequences in a single launch, which is "
                                                "faster; needs compute capability 9.0. Where two tokens are almost "
                                                "equally likely, an answer can depend on how many others are written "
                                                "at the time.")
    ] = False,
    engine_process: Annotated[
        bool | None,
        typer.Option("--engine-process/--no-engine-process", show_default=False,
                     help="Run the engine in a separate process, so that its steps do not wait while answers are "
                          "written. This needs 180 MB more; if the process dies, it is restarted. The default on a GPU "
                          "with more than one core; on the CPU device the kernels need the cores themselves.")
    ] = None,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", help="Requests that can wait; further ones get status 429.", min=1)
    ] = 256,
    max_connections: Annotated[
        int, typer.Option("--max-connections", help="Open connections allowed; further ones get status 503.", min=1)
    ] = 1_000,
    deadline: Annotated[
        float, typer.Option("--deadline", metavar="SECONDS", help="Requests that run longer are ended.", min=0.001)
    ] = 600.0,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", metavar="ORIGIN",
                     help="A site whose pages may call the server from a browser. Can be repeated."),
    ] = None,
    window_control: Annotated[
        bool, typer.Option("--window-control", help="Let the page at / pause and step the engine, which makes all "
                                                    "requests wait, even if other machines can reach it.")
    ] = False,
    device: Device = None,
):
    """Serve a model over HTTP with OpenAI's API: chats, completions and embeddings, streamed or not.

    Any client of that API works, with http://127.0.0.1:8000/v1 as its base_url. The first Ctrl-C or SIGTERM lets
    running requests finish; a second one does not.

    For example: labkit serve --port 8080
    """
    import importlib.util

    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if not importlib.util.find_spec(name)]
    if missing:
        raise UserError(f"serving needs {' and '.join(missing)}: pip install -e '.[serve]'")
    choose_device(device)
    from labkit.serve import server
    from labkit.serve.settings import Settings

    try:
        settings = Settings(model=model, host=host, port=port, api_key=api_key, max_num_seqs=max_num_seqs,
                            max_num_batched_tokens=max_num_batched_tokens, max_model_len=max_model_len,
                            dtype=dtype, one_kernel=one_kernel, engine_process=engine_process, max_waiting=max_waiting,
                            max_connections=max_connections, deadline_s=deadline,
                            allow_origins=tuple(allow_origin or ()), window_control=window_control)
    except ValueError as error:
        raise UserError(str(error)) from None
    console, notes = consoles()
    with notes.status("Loading") as status:
        def say(text: str) -> None:
            console.print(text, markup=False, soft_wrap=True)

        def ready(text: str) -> None:
            status.stop()
            say(text)

        def doing(what: str) -> None:
            status.update(what[0].upper() + what[1:])
            stage = what.partition(",")[0]  # without how many kernels are done
            if not notes.is_terminal and stage != stages[-1]:
                stages.append(stage)
                notes.print(stage, markup=False, soft_wrap=True)

        stages = [""]
        server.run(settings, say=say, ready=ready, doing=doing)
