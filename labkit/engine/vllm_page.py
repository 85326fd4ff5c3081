"""The page of vLLM's names: what each does here.

    python -m labkit.engine.vllm_page > data/vllm.md
"""

import inspect

from labkit.engine.llm import LLM
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.vllm import NO_EFFECT, ONLY, names, record

TAKE = {"SamplingParams": SamplingParams, "LLM": LLM, "LLM.generate": LLM.generate, "LLM.chat": LLM.chat}


def table() -> str:
    """The page of all names, in Markdown."""
    lines = ["# vLLM's names", "", f"The parameters of `SamplingParams`, `LLM`, `LLM.generate` and `LLM.chat` in vLLM "
             f"{record()['version']}, and what each does here; those of older versions come last in each list. One "
             "that is not supported is refused unless it is None, False or empty. Made by `python -m "
             "labkit.engine.vllm_page`, from the code.", ""]
    for of, target in TAKE.items():
        parameters = inspect.signature(target).parameters
        lines += [f"## {of}", "", "| name | here |", "|---|---|"]
        for name in names(of):
            allowed = ONLY.get(name)
            allowed = allowed if isinstance(allowed, tuple) else (allowed,)
            status = ("supported" if name in parameters else
                      f"no effect: {NO_EFFECT[of][name]}" if name in NO_EFFECT[of] else
                      f"only {' or '.join(f'`{value!r}`' for value in allowed)}" if name in ONLY else "not supported")
            lines.append(f"| `{name}` | {status} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(table(), end="")
