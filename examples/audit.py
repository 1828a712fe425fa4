"""Writes an append-only log of every change of a type: when, what, by which client, and which fields.

    python examples/audit.py --context eu-1 --namespace shop --type deployments.apps --log deployments.jsonl

One JSON object a line; values of fields are not written, so that the log may be shown to others. Kubernetes does not
keep who changed an object; it keeps the name under which a client manages fields, which is `manager` here.

What it cannot see it says: objects that were there at the start are `present`; what happened while nothing could be
watched appears as its result, and a deletion then has `seen` false. The last line of a run has the number of states
that were skipped because the disk was too slow. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import jsonpatch

from federator.api.object import KubeObject
from federator.cache import SharedInformerFactory, Tombstone
from federator.kube import MemberClient, ResourceListWatch, discover

NOISE = ("/metadata/managedFields", "/metadata/resourceVersion", "/metadata/generation")


class AuditLog:
    """An event handler that appends a line for each change."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, event: str, **fields: object) -> None:
        """Appends a line, and has it with the system before the next change is looked at."""
        self._file.write(
            json.dumps({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event} | fields)
        )
        self._file.write("\n")
        self._file.flush()

    def on_add(self, obj: KubeObject, is_initial: bool) -> None:
        """An object is new, or was there before."""
        self.write("present" if is_initial else "created", **_identity(obj), manager=_manager(json.loads(obj.raw)))

    def on_update(self, old: KubeObject, new: KubeObject) -> None:
        """An object changed; with another UID it was replaced by one of the same name."""
        before, after = json.loads(old.raw), json.loads(new.raw)
        changed = sorted({operation["path"] for operation in jsonpatch.make_patch(before, after)})
        self.write(
            "changed" if old.uid == new.uid else "replaced",
            **_identity(new),
            manager=_manager(after),
            fields=[path for path in changed if not path.startswith(NOISE)],
        )

    def on_delete(self, obj: KubeObject | Tombstone) -> None:
        """An object is gone; a tombstone says that only its absence was seen."""
        last = obj.object if isinstance(obj, Tombstone) else obj
        self.write("deleted", **(_identity(last) if last else {"key": obj.key}), seen=isinstance(obj, KubeObject))


def _identity(obj: KubeObject) -> dict[str, object]:
    return {"key": obj.key, "uid": obj.uid, "resourceVersion": obj.resource_version}


def _manager(obj: dict[str, Any]) -> str:
    """Who wrote last, by the name that Kubernetes keeps."""
    entries = obj["metadata"].get("managedFields") or [{}]
    newest: dict[str, str] = max(entries, key=lambda entry: entry.get("time", ""))
    return newest.get("manager", "")


async def main(context: str | None, namespace: str, type_name: str, file: TextIO) -> None:
    """Writes until cancelled."""
    async with MemberClient.from_kubeconfig(context) as client:
        types = {str(found.group_resource): found for found in (await discover(client)).types}
        if type_name not in types:
            raise SystemExit(f"no type {type_name!r}; there are: {', '.join(sorted(types))}")
        factory = SharedInformerFactory(functools.partial(ResourceListWatch, client))
        log = AuditLog(file)
        registration = factory.informer(types[type_name], namespace=namespace).add_event_handler(log)
        async with factory:
            await registration.wait_synced()
            log.write("watching", type=type_name)
            try:
                await asyncio.Event().wait()
            finally:
                log.write("ended", skipped=registration.statistics()["coalesced"], failed=registration.failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Logs every change of a type.")
    parser.add_argument("--context", help="of the kubeconfig; without it the current one")
    parser.add_argument("--namespace", default="", help="only objects of this namespace")
    parser.add_argument("--type", default="deployments.apps", help="plural name and group, e.g. pods, deployments.apps")
    parser.add_argument("--log", type=Path, required=True, help="the file that is appended to")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt), options.log.open("a") as file:
        asyncio.run(main(options.context, options.namespace, options.type, file))
