"""/v1/embeddings: MiniLM's, in batches between the engine's steps, so that one thread alone uses the device."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from labkit._common.errors import short
from labkit.serve.errors import ApiError
from labkit.serve.loading import embed
from labkit.serve.protocol import EmbeddingBody
from labkit.serve.service import Service, unknown_model
from labkit.serve.streaming import unless_gone

router = APIRouter()

BATCH = 8  # texts that are embedded between two steps of the engine: a stream waits for no more


def read(service: Service, raw: bytes) -> tuple[EmbeddingBody, list[str]]:
    body = EmbeddingBody.model_validate_json(raw)
    size = service.embedding_size
    if size is None:
        raise ApiError(404, "there are no embeddings here: `labkit weights minilm` fetches their model's weights",
                       param="model", code="model_not_found")
    if body.model not in service.encoder_names:
        raise unknown_model(body.model, [service.encoder_name])
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts or len(texts) > service.settings.max_inputs:
        raise ApiError(400, f"input has {len(texts):,} texts; from 1 to {service.settings.max_inputs} are allowed",
                       param="input")
    if not all(texts):
        raise ApiError(400, f"input[{texts.index('')}] is an empty text", param=f"input[{texts.index('')}]")
    if body.dimensions not in (None, size):
        raise ApiError(400, f"dimensions is {short(body.dimensions)}; this model's embeddings have {size}",
                       param="dimensions")
    return body, texts


@router.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    service: Service = request.app.state.service
    service.ready()
    body, texts = await service.read(read, service, await request.body())
    rows, tokens = await unless_gone(request, embedded(service, texts))
    encode = encoded if body.encoding_format == "base64" else np.ndarray.tolist
    return JSONResponse({
        "object": "list", "model": body.model,
        "data": [{"object": "embedding", "index": index, "embedding": encode(row)} for index, row in enumerate(rows)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})


async def embedded(service: Service, texts: list[str]) -> tuple[list[np.ndarray], int]:
    """The rows, and the tokens of all texts. In the order of their lengths a batch takes the shortest time."""
    tokens = 0
    order, rows = sorted(range(len(texts)), key=lambda index: -len(texts[index])), [None] * len(texts)
    for start in range(0, len(order), BATCH):
        indices = order[start : start + BATCH]
        future = service.ready_or_draining().ask(embed, [texts[index] for index in indices])
        vectors, count = await asyncio.wrap_future(future)
        tokens += count
        for index, row in zip(indices, vectors, strict=True):
            rows[index] = row
    return rows, tokens


def encoded(row: np.ndarray) -> str:
    """As OpenAI writes it: float32, the lowest byte first."""
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
