"""What the times of the answers come to, with the names of vLLM's serving benchmark:

    TTFT    time to first token: from sending a request to the first text of its answer
    ITL     inter-token latency: from one piece of text to the next; a piece holds one token, or several where the
            server sends less often than it computes
    TPOT    time per output token after the first: the rest of the time over the rest of the tokens
    E2EL    end-to-end latency: until the stream's end

Tokens are those that the server counts in `usage`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from labkit.measure.serving.load import Slo

NAMES = {"ttft": "Time to First Token", "tpot": "Time per Output Token (excl. 1st token)", "itl": "Inter-token Latency",
         "e2el": "End-to-end Latency"}
PERCENTILES = (95, 99)  # beside the median
CURVE = (0, 1, *range(5, 95, 5), 95, 96, 97, 98, 99, 99.5, 100)  # percentiles that a figure is drawn from
WIDTH = 50  # characters of the report, as vLLM prints it
SLO_ITL = 99  # the percentile of a request's own gaps that an SLO's itl is held against


def summary(records: Sequence[Mapping], seconds: float, slo: Slo | None = None) -> dict:
    """records: of client.Answer, those of a run that took so many seconds."""
    good = [one for one in records if one["error"] is None]
    latencies = [of_request(one) for one in good]
    outputs = [output_tokens(one) for one in good]
    prompts = [one["prompt_tokens"] or 0 for one in good]
    result = {
        "duration": seconds, "completed": len(good), "failed": len(records) - len(good),
        "total_input_tokens": sum(prompts), "total_output_tokens": sum(outputs),
        "request_throughput": len(good) / seconds, "output_throughput": sum(outputs) / seconds,
        "total_token_throughput": (sum(prompts) + sum(outputs)) / seconds,
        "max_concurrent_requests": most_at_once(records),
        "request_goodput": sum(map(slo.met, latencies)) / seconds if slo and slo.limits_ms else None,
        "errors_by_kind": kinds(records),
        "without_usage": sum(one["output_tokens"] is None for one in good),
        "tokens_per_piece": sum(outputs) / max(1, sum(1 + len(one["gaps"]) for one in good)),
    }
    for name in NAMES:
        values = ([1000 * gap for one in good for gap in one["gaps"]] if name == "itl" else
                  [each[name] for each in latencies if each[name] is not None])
        result |= statistics(name, values)
    return result


def of_request(record: Mapping) -> dict[str, float | None]:
    """Milliseconds by the names of NAMES; of ITL what an SLO is held against: nearly the longest of its own gaps."""
    later_tokens, gaps = output_tokens(record) - 1, record["gaps"]
    return {"ttft": 1000 * record["first"], "e2el": 1000 * record["took"],
            "tpot": 1000 * (record["took"] - record["first"]) / later_tokens if later_tokens > 0 else None,
            "itl": 1000 * float(np.percentile(gaps, SLO_ITL)) if gaps else None}


def output_tokens(record: Mapping) -> int:
    """As the server counted them; of one that does not, the pieces of text."""
    return record["output_tokens"] if record["output_tokens"] is not None else 1 + len(record["gaps"])


def statistics(name: str, values: Sequence[float]) -> dict:
    """mean_NAME_ms and so on; None where there are no values."""
    if not len(values):
        return dict.fromkeys([f"{metric}_{name}_ms" for metric in ("mean", "median", "std", "p95", "p99")]) | {
            f"{name}_curve": None}
    percentiles = {f"p{each}_{name}_ms": float(np.percentile(values, each)) for each in PERCENTILES}
    return {f"mean_{name}_ms": float(np.mean(values)), f"median_{name}_ms": float(np.median(values)),
            f"std_{name}_ms": float(np.std(values)), **percentiles,
            f"{name}_curve": [round(float(each), 4) for each in np.percentile(values, CURVE)]}


def most_at_once(records: Sequence[Mapping]) -> int:
    """Return the most requests in flight. One that ends as another begins does not overlap it."""
    moments = sorted([(one["sent"], 1) for one in records] + [(one["sent"] + one["took"], -1) for one in records])
    return int(np.cumsum([step for _, step in moments]).max(initial=0))


def kinds(records: Sequence[Mapping]) -> dict[str, dict]:
    """Kind of error -> how many, and the message of the first; the most frequent first."""
    failed = [one for one in records if one["error"] is not None]
    detail_of = {one["error"]: one["detail"] for one in reversed(failed)}
    return {kind: {"count": count, "first": detail_of[kind]}
            for kind, count in Counter(one["error"] for one in failed).most_common()}


def columns(records: Sequence[Mapping]) -> dict[str, list]:
    """Request by request, in vLLM's names: seconds and tokens."""
    return {"start_times": [one["sent"] for one in records], "ttfts": [one["first"] for one in records],
            "e2els": [one["took"] for one in records], "input_lens": [one["prompt_tokens"] for one in records],
            "output_lens": [one["output_tokens"] for one in records], "errors": [one["error"] for one in records]}


# --- As a text -------------------------------------------------------------------------------------------------------


def report(run: Mapping) -> str:
    """Format a run as vLLM's benchmark prints one."""
    def line(name: str, value) -> str:
        shown = "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(
            value, int) else value
        return f"{name:<40} {shown}"

    def heading(text: str, fill: str) -> str:
        return text.center(WIDTH, fill)

    rate = run.get("request_rate")
    lines = [heading(" Serving Benchmark Result ", "="),
             line("Successful requests:", run["completed"]), line("Failed requests:", run["failed"])]
    if run.get("max_concurrency"):
        lines.append(line("Maximum request concurrency:", run["max_concurrency"]))
    if rate is not None:
        lines.append(line("Request rate configured (RPS):", rate))
    lines += [line("Benchmark duration (s):", run["duration"]),
              line("Total input tokens:", run["total_input_tokens"]),
              line("Total generated tokens:", run["total_output_tokens"]),
              line("Request throughput (req/s):", run["request_throughput"])]
    if run["request_goodput"] is not None:
        lines.append(line("Request goodput (req/s):", run["request_goodput"]))
    lines += [line("Output token throughput (tok/s):", run["output_throughput"]),
              line("Peak concurrent requests:", run["max_concurrent_requests"]),
              line("Total token throughput (tok/s):", run["total_token_throughput"])]
    for name, title in NAMES.items():
        short = name.upper()
        lines += [heading(title, "-"), line(f"Mean {short} (ms):", run[f"mean_{name}_ms"]),
                  line(f"Median {short} (ms):", run[f"median_{name}_ms"]),
                  *(line(f"P{each} {short} (ms):", run[f"p{each}_{name}_ms"]) for each in PERCENTILES)]
    lines.append("=" * WIDTH)
    lines += [f"{each['count']:,} failed: {kind}: {each['first']}" for kind, each in run["errors_by_kind"].items()]
    return "\n".join(lines)


def notes(run: Mapping) -> list[str]:
    """Return what a reader must know to judge the figures, each as a sentence."""
    lines = []
    if run["without_usage"]:
        lines.append(f"{run['without_usage']:,} answers came without usage: the pieces of their text were counted as "
                     f"tokens.")
    if run["completed"] and run["tokens_per_piece"] > 1.05:
        lines.append(f"The server sent {run['tokens_per_piece']:.1f} tokens at a time on average: ITL is the time "
                     f"between these, TPOT between tokens.")
    lag = run.get("client_lag_ms")
    if lag and lag["p99"] > 10:
        lines.append(f"The client itself was {lag['p99']:.0f} ms late at times (p99): its times are that uncertain.")
    if run.get("stopped"):
        lines.append("The run was stopped before its end; this is what was measured until then.")
    return lines

