"""Answers to LIST and GET."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from federator.testing.fake_api_server.history import History, Version
from federator.testing.fake_api_server.list_options import ListOptions, check_list_version
from federator.testing.fake_api_server.served_type import ServedType, encode_partial, encode_partial_list
from federator.testing.fake_api_server.status import Json, bad_request, expired_list

WaitFor = Callable[[int], Awaitable[None]]
"""Waits until a revision is visible; raises ApiError 504 if that takes too long."""


class _Token(NamedTuple):
    """Where a paged list goes on.

    Attributes:
        revision: of the first page; negative for "whatever is now".
        start: the first key that is not given yet.
    """

    revision: int
    start: str

    def encode(self) -> str:
        content = {"v": "meta.k8s.io/v1", "rv": self.revision, "start": f"/{self.start}\0"}
        return base64.urlsafe_b64encode(msgspec.json.encode(content)).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> _Token:
        try:
            padded = text + "=" * (-len(text) % 4)
            content = msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=Json)
            return cls(int(content["rv"]), str(content["start"]).removeprefix("/").removesuffix("\0"))
        except (binascii.Error, msgspec.MsgspecError, KeyError, ValueError) as error:
            raise bad_request(f"invalid continue token: continue key is not valid: {error}") from None


async def list_objects(
    history: History,
    served: ServedType,
    options: ListOptions,
    *,
    partial: bool,
    visible: Callable[[], int],
    wait_for: WaitFor,
) -> bytes:
    """One page.

    Args:
        history: where the objects are.
        served: their type.
        options: the query.
        partial: only metadata is wanted.
        visible: the newest revision this replica has seen.
        wait_for: waits for a revision.

    Raises:
        ApiError: 400, 410 or 504.
    """
    asked = check_list_version(options.resource_version)
    start = ""
    # The cache, which answers "0", does not page.
    limit = 0 if options.resource_version and not asked else options.limit
    if options.continue_token:
        if asked:
            raise bad_request("specifying resource version is not allowed when using continue")
        token = _Token.decode(options.continue_token)
        start = token.start
        revision = token.revision if token.revision > 0 else history.revision
        if revision < history.compacted:
            raise expired_list({"continue": _Token(-1, start).encode()})
    elif not options.resource_version:
        revision = history.revision  # a consistent read, also of a replica that lags
    elif options.match == "Exact" or (asked and limit and not options.match):
        await wait_for(asked)
        revision = asked
        if revision < history.compacted:
            raise expired_list()
    else:
        await wait_for(asked)
        revision = visible()
    found = [pair for pair in history.at(served.group_resource, revision) if pair[0] > start]
    return _page(served, found, options, revision, limit, partial=partial)


def _page(
    served: ServedType,
    found: list[tuple[str, Version]],
    options: ListOptions,
    revision: int,
    limit: int,
    *,
    partial: bool,
) -> bytes:
    selection = options.selection
    selected = [(key, version) for key, version in found if selection.contains(version.obj)]
    page = selected[:limit] if limit else selected
    metadata: Json = {"resourceVersion": str(revision)}
    if len(page) < len(selected):
        metadata["continue"] = _Token(revision, page[-1][0]).encode()
        if not selection:
            metadata["remainingItemCount"] = len(selected) - len(page)
    items = [encode(served, version, partial=partial, item=True) for _, version in page]
    return encode_partial_list(metadata, items) if partial else served.encode_list(metadata, items)


def encode(served: ServedType, version: Version, *, partial: bool, item: bool = False) -> bytes:
    """One state's bytes, made once."""
    cache = (served.type.api_version, "partial" if partial else "", "item" if item else "")
    content = version.encoded.get(cache)
    if content is None:
        if partial:
            content = encode_partial(version.obj)
        else:
            content = served.encode_item(version.obj) if item else served.encode(version.obj)
        version.encoded[cache] = content
    return content
