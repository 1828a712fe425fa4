"""Failures as the apiserver words them: Status objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Json = dict[str, Any]
"""A decoded JSON object."""

REASONS: Mapping[int, tuple[str, str]] = {
    400: ("BadRequest", "bad request"),
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", "forbidden"),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    406: ("NotAcceptable", "406: Not Acceptable"),
    409: ("Conflict", "the object has been modified"),
    410: ("Expired", "The resourceVersion for the provided watch is too old."),
    415: ("UnsupportedMediaType", "415: Unsupported Media Type"),
    422: ("Invalid", "invalid"),
    429: ("TooManyRequests", "storage is (re)initializing"),
    500: ("InternalError", "Internal error occurred"),
    503: ("ServiceUnavailable", "apiserver not ready"),
    504: ("Timeout", "Timeout: request did not complete within the allotted timeout"),
}
"""Reason and message of a Status, by code, where the cause gives none of its own."""

TOO_LARGE = "Too large resource version"


class ApiError(Exception):
    """A request that is answered with a failure.

    Attributes:
        code: HTTP code.
        body: the Status, or text.
    """

    def __init__(self, code: int, body: Json | str, *, retry_after: int | None = None) -> None:
        self.code = code
        self.body = body
        self.retry_after = retry_after
        super().__init__(body if isinstance(body, str) else body.get("message", ""))

    @property
    def encoded(self) -> bytes:
        """The body's bytes."""
        return self.body.encode() if isinstance(self.body, str) else msgspec.json.encode(self.body)

    @property
    def content_type(self) -> str:
        """The body's media type."""
        return "text/plain; charset=utf-8" if isinstance(self.body, str) else "application/json"


def status(
    code: int,
    *,
    reason: str | None = None,
    message: str | None = None,
    details: Json | None = None,
    metadata: Json | None = None,
) -> Json:
    """A Status of a failure, with the code's usual reason and message where none is given; "" leaves one out."""
    usual_reason, usual_message = REASONS.get(code, ("", ""))
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": metadata or {}, "status": "Failure"}
    body["message"] = usual_message if message is None else message
    if reason := usual_reason if reason is None else reason:
        body["reason"] = reason
    if details is not None:
        body["details"] = details
    body["code"] = code
    return body


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, status(400, message=message))


def internal(message: str) -> ApiError:
    """500 without a reason: an error of Go that nobody dressed up."""
    return ApiError(500, status(500, reason="", message=message))


def unserved() -> ApiError:
    """404 for a path inside a group that is served."""
    return ApiError(404, status(404, details={}))


def not_found_page() -> ApiError:
    """404 for a path that nobody serves, which is not even JSON."""
    return ApiError(404, "404 page not found\n")


def not_allowed() -> ApiError:
    """405."""
    return ApiError(405, status(405, details={}))


def not_found(details: Json, qualified: str) -> ApiError:
    """404 for an object."""
    return ApiError(404, status(404, message=f'{qualified} "{details["name"]}" not found', details=details))


def conflict(details: Json, cause: str, *, subject: str) -> ApiError:
    """409."""
    message = f'Operation cannot be fulfilled on {subject} "{details["name"]}": {cause}'
    return ApiError(409, status(409, message=message, details=details))


def invalid(subject: str, details: Json, causes: Sequence[tuple[str, str, str]]) -> ApiError:
    """422.

    Args:
        subject: what is invalid, e.g. `ConfigMap "a"`.
        details: of the Status, without causes.
        causes: reason, message and field of each.
    """
    listed = [f"{field}: {message}" for _, message, field in causes]
    joined = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    told = [{"reason": reason, "message": message, "field": field} for reason, message, field in causes]
    message = f"{subject} is invalid: {joined}"
    return ApiError(422, status(422, message=message, details={**details, "causes": told}))


def too_large(asked: int | str, current: int | str) -> ApiError:
    """504 for a resourceVersion the server has not seen yet."""
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": TOO_LARGE}], "retryAfterSeconds": 1}
    message = f"Timeout: {TOO_LARGE}: {asked}, current: {current}"
    return ApiError(504, status(504, message=message, details=details), retry_after=1)


def expired_list(metadata: Json | None = None) -> ApiError:
    """410 for a list; with a continue token in `metadata` for a page of one."""
    message = "The resourceVersion for the provided list is too old."
    if metadata:
        message = (
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter, or use the continue token in this response to retrieve the remainder of "
            "the results. Continuing with the provided token results in an inconsistent list - objects that were "
            "created, modified, or deleted between the time the first chunk was returned and now may show up in the "
            "list."
        )
    return ApiError(410, status(410, message=message, metadata=metadata))


def expired_watch(asked: int, oldest: int) -> ApiError:
    """410 of a watch, which arrives as an event."""
    return ApiError(410, status(410, message=f"too old resource version: {asked} ({oldest})"))
