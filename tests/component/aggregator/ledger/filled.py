"""A ledger with something of everything, made anew by each test that asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import zstandard

from federator.aggregator.ledger import floor
from federator.aggregator.ledger.indexed_state import read_indexed_state
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.records import Put
from federator.aggregator.ledger.tables import DATA_FILE, FOLDER
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import ResourceType
from federator.wire.body import Dictionary, content_hash
from tests.contract.ledger.member import PODS, Member, delete

BERLIN = ClusterID("berlin")
CONFIG_MAPS = ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True)
WEB = ObjectKey(BERLIN, "", "configmaps", "shop", "web")
THEN = 1_790_000_000.0
"""When the ledger was filled, in seconds since 1970."""


def config_map(name: str, *, uid: str = "uid-1", version: int = 1, **data: str) -> bytes:
    """A ConfigMap's JSON."""
    metadata = {"name": name, "namespace": "shop", "uid": uid, "resourceVersion": str(version), "labels": {"app": name}}
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}).encode()


def put_raw(ledger: LmdbLedger, raw: bytes) -> Put:
    """The change to an object's JSON, compressed as an agent does."""
    meta: Any = json.loads(raw)["metadata"]
    return Put(
        meta["namespace"],
        meta["name"],
        meta["uid"],
        meta["resourceVersion"],
        content_hash(raw),
        ledger.bodies.encode(raw, CONFIG_MAPS.group_resource),
        read_indexed_state(raw),
    )


def trained(*samples: bytes, dictionary_id: int = 7) -> Dictionary:
    """A dictionary that has nothing but the ends of what it was made of."""
    content = zstandard.train_dictionary(
        2048, [sample + bytes([number % 251]) for sample in samples for number in range(60)], dict_id=dictionary_id
    )
    return Dictionary.of(CONFIG_MAPS.group_resource, content.as_bytes())


async def fill(ledger: LmdbLedger) -> None:
    """Two clusters; objects added, changed, deleted, added again, compacted; compressed with a dictionary and without.

    `web` was there with two UIDs, deleted in between; `gone` is deleted; a name too long for a key is there as well.
    """
    berlin, paris = await Member.join(ledger), await Member.join(ledger, "paris")
    say = "said in many objects of this type, which a dictionary knows "
    await berlin.push(*(put_raw(ledger, config_map(f"old-{n}", note=say * 3)) for n in range(20)), of=CONFIG_MAPS)
    await berlin.push(put_raw(ledger, config_map("old-1", version=2, note="compacted")), of=CONFIG_MAPS)
    await berlin.push(delete("old-2"), of=CONFIG_MAPS)
    await ledger.compact(ledger.revision)
    await ledger.add_dictionary(trained(*(config_map(f"old-{n}", note=say * 3) for n in range(20))))
    for version, uid in enumerate(("uid-1", "uid-1", "", "uid-2", "uid-2"), 1):
        if uid:
            raw = config_map("web", uid=uid, version=version, note=say, count=str(version))
            await berlin.push(put_raw(ledger, raw), of=CONFIG_MAPS, sequence=version)
        else:
            await berlin.push(delete("web"), of=CONFIG_MAPS, sequence=version)
    await berlin.push(
        put_raw(ledger, config_map("gone", note=say)), put_raw(ledger, config_map("x" * 600)), of=CONFIG_MAPS
    )
    await berlin.push(delete("gone"), of=CONFIG_MAPS, low_water="120")
    await paris.push(put_raw(ledger, config_map("web", note=say)), of=CONFIG_MAPS, sequence=9)
    await ledger.set_cluster_state(BERLIN, ClusterState.LIVE, "synced")
    await ledger.set_type_state(BERLIN, PODS, TypeState.DENIED, "forbidden")


async def filled(path: Path) -> None:
    """Such a ledger in a state directory, closed. The same one for all tests of a process: filling takes a while."""
    if not _FILES:
        ledger = LmdbLedger.open(path, clock=lambda: THEN)
        await fill(ledger)
        await ledger.close()
        _FILES.update({name: (path / name).read_bytes() for name in (f"{FOLDER}/{DATA_FILE}", floor.FILE)})
        return
    (path / FOLDER).mkdir(0o700, parents=True)
    for name, content in _FILES.items():
        (path / name).write_bytes(content)


_FILES: dict[str, bytes] = {}
"""The files of a filled ledger, by path in the state directory."""


def names_in(folder: Path) -> set[str]:
    """What a folder has."""
    return {each.name for each in folder.iterdir()}


@contextmanager
def raw_tables(path: Path) -> Iterator[lmdb.Environment]:
    """The closed ledger's files, for tampering."""
    with lmdb.Environment(str(path / FOLDER), map_size=1 << 40, max_dbs=10) as environment:
        yield environment
