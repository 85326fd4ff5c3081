"""Middleware around every request and answer: limits, the key, allowed origins; errors in OpenAI's format."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
from urllib.parse import urlsplit

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from labkit.serve.errors import INVALID, ApiError, of_exception
from labkit.serve.service import Service
from labkit.serve.streaming import GONE, ClientGone, log_fault

log = logging.getLogger(__name__)

OPEN = ("/", "/health", "/ready", "/favicon.ico")  # without a key: a page without data, and what a load balancer asks
PROBES = ("/health", "/ready", "/metrics")  # asked every few seconds: not for the log


class Gate:
    """An ASGI middleware. Of a request only its method, its route, its status and its time are logged."""

    def __init__(self, app, service: Service):
        self._app, self._service, self._settings = app, service, service.settings
        self._key = (service.settings.api_key or "").encode()

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service, began, is_api_call = self._service, time.perf_counter(), scope["path"].startswith("/v1/")
        status = GONE

        async def send_recorded(message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        service.active += is_api_call
        service.metrics.active.set(service.active)
        try:
            headers = dict(scope["headers"])
            self._check(scope, headers)
            await self._app(scope, Limited(receive, headers, self._settings), send_recorded)
        except (ClientGone, ClientDisconnect):
            status = GONE
            service.metrics.disconnects.inc()
        except Exception as error:
            api_error = of_exception(error, self._settings.retry_after_s)
            log_fault(error, api_error)
            if status == GONE:  # nothing was sent
                await api_error.response(scope, receive, send_recorded)
        finally:
            service.active -= is_api_call
            service.metrics.active.set(service.active)
            route = getattr(scope.get("route"), "path", "other")  # a path that is none of ours may be anything
            service.metrics.requests.labels(route, str(status)).inc()
            log.log(logging.DEBUG if route in PROBES else logging.INFO, "%s %s %d %.3f s",
                    scope["method"] if route != "other" else "-", route, status, time.perf_counter() - began)

    def _check(self, scope, headers: dict[bytes, bytes]) -> None:
        settings, size = self._settings, sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > settings.max_headers:
            raise ApiError(431, f"the request's headers have {size:,} bytes; at most {settings.max_headers:,} are "
                                f"read", code="headers_too_large")
        self._check_origin(headers)
        if self._key and scope["path"] not in OPEN:
            scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
            if not (hmac.compare_digest(credentials.strip(), self._key) and scheme.lower() == b"bearer"):
                raise ApiError(401, "the API key is missing or wrong; it is sent as the header Authorization: Bearer "
                                    "KEY", code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:18]) > settings.max_body:
            raise too_large(settings)

    def _check_origin(self, headers: dict[bytes, bytes]) -> None:
        """A page of another site, open in a browser on this machine, can reach what listens on this machine alone; and
        by a name of its own that leads here, it can read the answers."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._key and is_loopback(self._settings.host) and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            raise ApiError(403, "the server answers to the names of this machine alone; --host opens it to others",
                           code="wrong_host")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin not in self._settings.allow_origins and urlsplit(origin).netloc != host:
            raise ApiError(403, "pages of other sites may not call this server; --allow-origin names those that may",
                           code="wrong_origin")


class Head:
    """An ASGI middleware that answers HEAD as GET, without the body."""

    def __init__(self, app):
        self._app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope.get("method") != "HEAD":
            await self._app(scope, receive, send)
            return

        async def headers_alone(message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body"})  # a stream of events now sees that its reader has gone

        get_scope = scope | {"method": "GET"}
        try:
            await self._app(get_scope, receive, headers_alone)
        finally:
            scope |= get_scope | {"method": "HEAD"}  # with the route, which the Gate logs


class Limited:
    """A request's `receive`, of no more bytes and no more seconds than allowed."""

    def __init__(self, receive, headers: dict[bytes, bytes], settings):
        self._receive, self._settings = receive, settings
        self._bytes, self._more = 0, True
        self._deadline = asyncio.get_running_loop().time() + settings.body_s

    async def __call__(self):
        if not self._more:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive in {self._settings.body_s:g} s", code="body_timeout",
                           headers={"connection": "close"}) from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            self._more = message.get("more_body", False)
            if self._bytes > self._settings.max_body:
                raise too_large(self._settings)
        return message


def too_large(settings) -> ApiError:
    return ApiError(413, f"the body is too large; at most {settings.max_body:,} bytes are read", code="body_too_large")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def handlers() -> dict:
    """Of FastAPI's own errors."""
    async def http(request, error: HTTPException):
        messages = {404: "there is nothing at this path", 405: "this path does not take this method"}
        return ApiError(error.status_code, messages.get(error.status_code, str(error.detail)), type=INVALID,
                        headers=dict(error.headers or {})).response

    async def invalid(request, error: RequestValidationError):
        detail = error.errors()[0]
        location = ".".join(map(str, detail["loc"]))
        return ApiError(400, f"{location}: {detail['msg']}", param=location).response

    return {HTTPException: http, RequestValidationError: invalid}
