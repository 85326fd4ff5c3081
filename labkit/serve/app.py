"""The web application: OpenAI's paths, whether it serves, and what it counts.

    app = create_app(engine, Settings(model="tiny-llama"))       # for uvicorn, or a test client
    app = create_app(None, settings)                             # not ready yet
    app.state.service.serve(engine)                              # now it is
"""

from __future__ import annotations

import asyncio
import contextlib

from fastapi import APIRouter, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from labkit._common.version import __version__
from labkit.serve import completions, embeddings, window
from labkit.serve.async_engine import AsyncEngine
from labkit.serve.errors import SERVER, ApiError
from labkit.serve.gate import Gate, Head, handlers
from labkit.serve.service import Service, unknown_model
from labkit.serve.settings import Settings

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """Whether the process should go on, and what it does: 503 where the engine has ended, or none of its steps
    succeeds."""
    service: Service = request.app.state.service
    status, message = service.condition
    if status in ("failed", "restarting"):
        raise ApiError(503, f"the engine does not work: {message}", type=SERVER, code=status)
    return JSONResponse({"status": "ok"} if status == "ready" else {"status": status, "doing": message})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Whether it takes requests."""
    request.app.state.service.ready()
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    return Response(request.app.state.service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models")
async def models(request: Request) -> Response:
    service: Service = request.app.state.service
    service.ready()
    return JSONResponse({"object": "list", "data": [described(name, service) for name in service.models]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    service: Service = request.app.state.service
    service.ready()
    if name not in service.models:
        raise unknown_model(name, service.models)
    return JSONResponse(described(name, service))


def described(name: str, service: Service) -> dict:
    extra = {"max_model_len": service.ready().max_model_len} if name == service.model_name else {}
    return {"id": name, "object": "model", "created": service.began, "owned_by": "labkit", **extra}


def create_app(engine: AsyncEngine | None, settings: Settings | None = None) -> FastAPI:
    """engine: None: `app.state.service.serve` gives it one later. It is not ended with the app."""
    settings = settings or Settings()
    service = Service(engine, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI):
        watch_task = asyncio.create_task(service.metrics.watch_loop())
        yield
        watch_task.cancel()
        service.close()

    app = FastAPI(title="labkit", version=__version__, lifespan=lifespan, openapi_url=None,
                  exception_handlers=handlers())
    app.state.service = service
    for each in (router, completions.router, embeddings.router, window.router):
        app.include_router(each)
    app.add_middleware(Head)
    app.add_middleware(Gate, service=service)
    if settings.allow_origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings.allow_origins, allow_methods=["*"],
                           allow_headers=["*"])
    return app
