"""Compares what a watch-list gave with what a list gives at the same version (client-go: consistencydetector)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from federator.api.list_watch import ListOptions
from federator.api.object import KubeObject
from federator.cache import ListWatch
from federator.cache.delta_fifo import Transform
from federator.cache.pager import list_all
from federator.errors import KubeStatusError, MemberUnreachable

ATTEMPTS = 5
"""Lists tried before a comparison is given up."""


class Inconsistent(AssertionError):
    """The two ways told different states; says of which objects."""


async def check_consistency(
    list_watch: ListWatch,
    objects: Iterable[KubeObject],
    resource_version: str,
    *,
    transform: Transform | None = None,
    options: ListOptions | None = None,
) -> bool:
    """Lists exactly the version at which `objects` were synced and compares.

    Args:
        list_watch: the server's side.
        objects: what came by a watch-list, as it is held.
        resource_version: the version of the bookmark that ended it.
        transform: what was done to each object before it was held.
        options: what was asked, where it was a list of its own: "0" and later pages cannot be compared.

    Returns:
        Whether there was something to compare.

    Raises:
        Inconsistent: an object is missing, or too many, or in another state.
        KubeStatusError, MemberUnreachable: the list failed, again and again.
    """
    asked = options or ListOptions()
    if resource_version in ("", "0") or asked.resource_version == "0" or asked.continue_token:
        return False
    # Without a limit: pages of an exact version come from etcd, which may have compacted it in between.
    exactly = ListOptions(resource_version=resource_version, resource_version_match="Exact")
    listed = await _listed(list_watch, exactly)
    if transform is not None:
        listed = [transform(obj) for obj in listed]
    ours, theirs = _by_key(objects), _by_key(listed)
    different = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if different:
        raise Inconsistent(f"a watch-list and a list at {resource_version} differ in: {', '.join(different)}")
    return True


async def _listed(list_watch: ListWatch, options: ListOptions) -> Sequence[KubeObject]:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return (await list_all(list_watch, options)).page.objects
        except (KubeStatusError, MemberUnreachable):
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _by_key(objects: Iterable[KubeObject]) -> dict[str, KubeObject]:
    # Hashes are of the way through the agent, not of the server's state.
    return {obj.key: msgspec.structs.replace(obj, content_hash=0) for obj in objects}
