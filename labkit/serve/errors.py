"""Request errors in OpenAI's format: {"error": {"message", "type", "param", "code"}} and a status."""

from __future__ import annotations

import re
from typing import NamedTuple

from pydantic import ValidationError
from starlette.responses import JSONResponse

from labkit._common.errors import UserError, short
from labkit.serve.async_engine import Busy, DeadlineExceeded, Draining, EngineDied, StepFault

INVALID, SERVER = "invalid_request_error", "server_error"


class ApiError(Exception):
    """An answer that is an error. param: the field that is wrong."""

    def __init__(self, status: int, message: str, *, type: str = INVALID, param: str | None = None,
                 code: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.type, self.param, self.code = status, message, type, param, code
        self.headers = headers or {}

    @property
    def body(self) -> dict:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


class Known(NamedTuple):
    """How an exception is answered."""

    status: int
    type: str
    code: str | None
    headers: dict[str, str] = {}


# A client of OpenAI's tries again after 429 and 5xx, unless x-should-retry says that it makes no sense.
KNOWN: dict[type[Exception], Known] = {
    Busy: Known(429, "rate_limit_error", "too_many_waiting"),
    Draining: Known(503, SERVER, "draining", {"retry-after": "5"}),
    DeadlineExceeded: Known(504, "timeout_error", "deadline_exceeded", {"x-should-retry": "false"}),
    StepFault: Known(500, SERVER, "step_failed"),
    EngineDied: Known(503, SERVER, "engine_died", {"retry-after": "5"}),
    UserError: Known(400, INVALID, None),
    ValueError: Known(400, INVALID, None),
    TypeError: Known(400, INVALID, None),
}


def of_exception(error: Exception, retry_after_s: int = 1) -> ApiError:
    """Return known exceptions with their own message. Messages of any others may quote the request or this machine,
    so they are not sent."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return of_validation(error)
    for kind, known in KNOWN.items():
        if isinstance(error, kind):
            headers = {"retry-after": str(retry_after_s)} if known.status == 429 else known.headers
            param = named(str(error)) if known.status == 400 else None
            return ApiError(known.status, str(error), type=known.type, code=known.code, param=param, headers=headers)
    return ApiError(500, f"the server failed: {type(error).__name__}", type=SERVER, code="internal_error")


def named(message: str) -> str | None:
    """The field that a message of the engine's checks begins with: "top_p is 2; it must be ..."."""
    match = re.match(r"([a-z_]+) (is|has) ", message)
    return match[1] if match else None


def of_validation(error: ValidationError) -> ApiError:
    """Of the things that are wrong with a body, the one that is deepest in it: of a union's members, the one that the
    client is likely to have meant."""
    first = max(error.errors(include_url=False), key=lambda one: len(client_path(one["loc"])))
    path, value = client_path(first["loc"]), first["input"]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json")
    if not path:
        return ApiError(400, f"the body is {short(value)}; it must be a JSON object")
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{param} is not a field that this server knows", param=param, code="unknown_parameter")
    if first["type"] == "missing":
        return ApiError(400, f"{param} is missing", param=param, code="missing_required_parameter")
    return ApiError(400, f"{param} is {short(value)}: {first['msg']}", param=param, code="invalid_type")


def client_path(loc: tuple) -> list:
    """The part of a path that the client wrote: pydantic adds the names of union members."""
    return [part for part in loc if isinstance(part, int) or part not in ("str", "int", "float") and "[" not in part]
