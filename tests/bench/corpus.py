"""The corpus: many objects of many types, made of a small sample of a living cluster.

A sampled object becomes a template: what differs between the objects of real clusters (UIDs, names, namespaces, nodes,
hashes, addresses, times, releases, labels' and settings' values) is cut out of its JSON and filled in anew for each
copy. What was equal in the sample is equal in a copy, so a pod's owner is the UID of its ReplicaSet, and an
EndpointSlice names its pods. The same cluster, copy and turn give the same bytes in every process.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import xxhash

from federator.api.object import KubeObject
from federator.api.resource import ResourceType

WEIGHTS: Mapping[str, int] = {
    "pods": 40,
    "replicasets": 15,
    "endpointslices": 10,
    "configmaps": 10,
    "services": 8,
    "deployments": 8,
    "serviceaccounts": 5,
    "nodes": 2,
    "namespaces": 2,
}
"""Types and their shares of the objects, and of the changes, in percent."""

FIRST_VERSION = 1_000_000
"""resourceVersion below all those of a made cluster."""

_WORDS = re.findall(
    r"\w+",
    "account address audit basket billing booking cart catalog charge checkout claim coupon credit currency "
    "customer delivery device discount email export fraud gateway history identity image import inventory invoice "
    "ledger limit locale location loyalty media menu message meter offer order partner payment plan "
    "price profile quote rating receipt refund region report review route search session shipping stock "
    "store subscription tax ticket user wallet ",
)
_LEVELS = (b"debug", b"info", b"warning", b"error")
_TRACKS = (b"stable", b"canary", b"beta")
_REGIONS = (b"eu-central", b"eu-west", b"us-east", b"us-west", b"ap-south", b"ap-east")
_OLDEST = 400 * 24 * 3600
"""Seconds that copies may be older than the sample."""

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_SAFE = b"bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes makes hashes and suffixes of these, which form no words."""

_SUFFIX = 5
"""Letters of a suffix; a hash of a pod's template has more, and is the same wherever the template is."""


class Sampled(msgspec.Struct, frozen=True):
    """An object of the sample."""

    type: ResourceType
    object: KubeObject


class State(NamedTuple):
    """One state of a made object."""

    namespace: str
    name: str
    uid: str
    version: int
    raw: bytes


class _Place(NamedTuple):
    """Which copy is made."""

    cluster: int
    copy: int
    turn: int

    def hash(self, token: bytes) -> int:
        """Differs between clusters."""
        return xxhash.xxh3_64_intdigest(token, self.cluster << 32 | self.copy)

    def hex(self, token: bytes) -> str:
        """32 digits that differ between clusters."""
        return xxhash.xxh3_128_hexdigest(token, self.cluster << 32 | self.copy)

    def name_hash(self, token: bytes) -> int:
        """The same in all clusters, which run the same applications."""
        return xxhash.xxh3_64_intdigest(token, self.copy)


class _Slot(NamedTuple):
    """A place in a template: its kind and what stood there in the sample."""

    kind: str
    token: bytes


def _uid(place: _Place, token: bytes) -> bytes:
    digits = place.hex(token)
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}".encode()


def _safe_hash(place: _Place, token: bytes) -> bytes:
    # Each letter is shifted, by as much in all tokens of a copy: different ones stay different.
    shifts = place.name_hash(b"shifts") if len(token) > _SUFFIX else place.hash(b"shifts")
    return bytes([_SAFE[(_SAFE.find(letter) + (shifts >> 5 * at)) % len(_SAFE)] for at, letter in enumerate(token)])


def _numbered(place: _Place, token: bytes) -> bytes:
    return b"%b-%d" % (token, place.copy)


def _application(place: _Place, token: bytes) -> bytes:
    # With the sample's number, so that two of a namespace do not become one.
    word = _WORDS[place.name_hash(token) % len(_WORDS)]
    return b"%b-%b" % (word.encode(), token.rpartition(b"-")[2])


def _release(place: _Place, token: bytes) -> bytes:
    number = place.name_hash(token)
    return b"%d.%d.%d" % (number % 4, number // 4 % 20, number // 80 % 12)


def _address(place: _Place, token: bytes) -> bytes:
    number = place.hash(token)
    return b"10.%d.%d.%d" % (number & 255, number >> 8 & 255, 1 + (number >> 16) % 254)


def _time(place: _Place, token: bytes) -> bytes:
    # A turn is a minute, so that each change tells of another time.
    return _written(int(token) + place.turn * 60 - place.hash(b"age") % _OLDEST)


def _creation_time(place: _Place, token: bytes) -> bytes:
    return _written(int(token) - place.hash(b"age") % _OLDEST)


@lru_cache(maxsize=4096)  # the objects of a copy have their times in common
def _written(seconds: int) -> bytes:
    return time.strftime(_TIME_FORMAT, time.gmtime(seconds)).encode()


def _image_id(place: _Place, token: bytes) -> bytes:
    digest = f"{place.hex(token)}{place.hex(token + b'2')}"
    return b"registry.example.com/%b@sha256:%b" % (_application(place, token), digest.encode())


def _cpu(place: _Place, token: bytes) -> bytes:
    return b"%dm" % (50 * (1 + place.name_hash(token) % 40))


def _memory(place: _Place, token: bytes) -> bytes:
    return b"%dMi" % (64 * (1 + place.name_hash(token) % 64))


def _level(place: _Place, token: bytes) -> bytes:
    return _LEVELS[place.name_hash(token) % len(_LEVELS)]


def _track(place: _Place, token: bytes) -> bytes:
    return _TRACKS[place.name_hash(token) % len(_TRACKS)]


def _region(place: _Place, _: bytes) -> bytes:
    return _REGIONS[place.cluster % len(_REGIONS)]


def _flag(place: _Place, token: bytes) -> bytes:
    return b"True" if place.hash(b"%b %d" % (token, place.turn)) & 1 else b"False"


_FILLINGS: Mapping[str, Callable[[_Place, bytes], bytes]] = {
    "uid": _uid,
    "created": _creation_time,
    "time": _time,
    "address": _address,
    "namespace": _numbered,
    "node": _numbered,
    "application": _application,
    "hash": _safe_hash,
    "suffix": _safe_hash,
    "release": _release,
    "image": _image_id,
    "machine": _uid,
    "cpu": _cpu,
    "memory": _memory,
    "level": _level,
    "track": _track,
    "region": _region,
    "flag": _flag,
}

_TIME = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
_VERSION = "version"


class Template:
    """One sampled object with its slots cut out."""

    def __init__(self, sampled: Sampled, pattern: re.Pattern[bytes]) -> None:
        obj = sampled.object
        application = pattern.search(b'"' + obj.name.encode())
        owner = application[0] if application and application.lastgroup == "application" else b""
        self._slots: dict[_Slot, int] = {}
        self._raw, raw_places = self._cut(obj.raw, pattern, owner)
        self._name, name_places = self._cut(obj.name.encode(), pattern, owner)
        # The name may have slots that the JSON finds elsewhere only: a namespace's own name is one.
        self._fills = [(_FILLINGS.get(slot.kind), slot.token) for slot in self._slots]
        self._version = self._slots.get(_Slot(_VERSION, b""))
        self._pick_raw, self._pick_name = _picker(raw_places), _picker(name_places)
        self._namespace = self._slots.get(_Slot("namespace", obj.namespace.encode()))
        self._uid = self._slots[_Slot("uid", obj.uid.encode())]

    def state(self, cluster: int, copy: int, version: int, turn: int = 0) -> State:
        """One state of one copy.

        Args:
            cluster: number of the cluster.
            copy: number of the copy in it.
            version: its resourceVersion.
            turn: how often it was changed.
        """
        place = _Place(cluster, copy, turn)
        values = [fill(place, token) if fill else b"%d" % version for fill, token in self._fills]
        namespace = "" if self._namespace is None else values[self._namespace].decode()
        name = (self._name % self._pick_name(values)).decode()
        return State(namespace, name, values[self._uid].decode(), version, self._raw % self._pick_raw(values))

    def _cut(self, text: bytes, pattern: re.Pattern[bytes], owner: bytes) -> tuple[bytes, list[int]]:
        """The text as a format, and the number of the slot for each of its places."""
        parts: list[bytes] = []
        places: list[int] = []
        end = 0
        for found in pattern.finditer(text):
            assert found.lastgroup is not None
            slot = _slot(found.lastgroup, found[0], owner, len(places))
            places.append(self._slots.setdefault(slot, len(self._slots)))
            parts += (text[end : found.start()].replace(b"%", b"%%"), b"%b")
            end = found.end()
        return b"".join((*parts, text[end:].replace(b"%", b"%%"))), places


def _slot(kind: str, text: bytes, owner: bytes, number: int) -> _Slot:
    match kind:
        case "version":
            return _Slot(_VERSION, b"")
        case "release" | "cpu" | "memory" | "level" | "track":  # each application has its own
            return _Slot(kind, b"%b %b" % (owner, text))
        case "image":  # a fake node runs none, and leaves it empty
            return _Slot(kind, owner)
        case "flag" | "machine":
            return _Slot(kind, b"%b %d" % (owner, number))
        case "created" | "time":  # read once, not for each copy
            return _Slot(kind, b"%d" % timegm(time.strptime(text.decode(), _TIME_FORMAT)))
        case _:
            return _Slot(kind.partition("_")[0], text)


def _picker(places: Sequence[int]) -> Callable[[Sequence[bytes]], tuple[bytes, ...]]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


class Corpus:
    """Objects without number, of the types of a sample.

    Attributes:
        types: by plural name, in the order of `WEIGHTS`.
    """

    def __init__(self, sample: Iterable[Sampled]) -> None:
        ordered = sorted(sample, key=lambda each: (each.type.resource, each.object.key))
        pattern, of_namespaces = _pattern(ordered)
        found = {each.type.resource: each.type for each in ordered}
        self.types = {resource: found[resource] for resource in WEIGHTS if resource in found}
        self._templates: dict[str, list[Template]] = {resource: [] for resource in self.types}
        for each in ordered:
            is_namespace = each.type.resource == "namespaces"
            self._templates[each.type.resource].append(Template(each, of_namespaces if is_namespace else pattern))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The corpus of a sample that `write_sample` has written."""
        return cls(msgspec.msgpack.decode(path.read_bytes(), type=list[Sampled]))

    def state(self, resource: str, cluster: int, index: int, version: int, turn: int = 0) -> State:
        """One state of the object with this number among those of its type in its cluster."""
        templates = self._templates[resource]
        return templates[index % len(templates)].state(cluster, index // len(templates), version, turn)

    def counts(self, objects: int) -> dict[str, int]:
        """How many objects of each type a cluster of so many has; at least one of each."""
        total = sum(WEIGHTS[resource] for resource in self.types)
        return {resource: max(1, objects * WEIGHTS[resource] // total) for resource in self.types}


def write_sample(path: Path, sample: Sequence[Sampled]) -> None:
    """Writes a sample where other processes can read it."""
    path.write_bytes(msgspec.msgpack.encode(sample))


def by_weight(resources: Iterable[str]) -> Iterator[str]:
    """Types in turn, for ever, each as often as its weight says and spread as evenly as that goes."""
    weights = {resource: WEIGHTS[resource] for resource in resources}
    due = dict.fromkeys(weights, 0)
    while True:
        for resource, weight in weights.items():
            due[resource] += weight
        chosen = max(due, key=lambda resource: due[resource])
        due[chosen] -= sum(weights.values())
        yield chosen


def _pattern(sample: Sequence[Sampled]) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """What finds the slots of a sample's objects, and of its namespaces."""

    def names(kind: str) -> set[str]:
        return {each.object.name for each in sample if each.type.kind == kind}

    # A Service may have lost its Deployment meanwhile; the apiserver's own has no number.
    applications = {name for name in names("Deployment") | names("Service") if name[-1].isdigit()}
    hashes: set[str] = set()
    suffixes: set[str] = set()
    for each in sample:
        shape = msgspec.json.decode(each.object.raw, type=_Shape).metadata
        if (labels := shape.labels) and "pod-template-hash" in labels:
            hashes.add(labels["pod-template-hash"])
        if shape.generate_name:
            suffixes.add(each.object.name.removeprefix(shape.generate_name))
    fields = {
        "uid": rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "version": rb'(?<="resourceVersion":")\d+',
        "created": rb'(?<="creationTimestamp":")' + _TIME,
        "time": _TIME,
        "namespace": rb'(?<="namespace":")[^"]+',
        "address": rb"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])",
        "application": rb"(?<![\w-])" + _any(applications) + rb"(?!\w)",
        "node": rb"(?<![\w-])" + _any(names("Node")) + rb"(?!\w)",
        "hash": rb"(?<=-)" + _any(hashes) + rb'(?!\w)|(?<="pod-template-hash":")[^"]+',
        "suffix": rb"(?<=-)" + _any(suffixes) + rb"(?!\w)|(?<=kube-api-access-)\w{5}",
        "release": rb'(?<=[":])\d+\.\d+\.\d+(?=")',
        "image": rb'(?<="imageID":")(?=")',
        "machine": rb'(?<="machineID":")(?=")|(?<="systemUUID":")(?=")|(?<="bootID":")(?=")',
        "cpu": rb'(?<=")\d+m(?=")',
        "memory": rb'(?<=")\d+Mi(?=")',
        "level": rb'(?<="LOG_LEVEL","value":")\w+',
        "track": rb'(?<="track":")\w+',
        "region": rb'(?<="REGION","value":")[^"]+',
        "flag": rb"(?<=enabled = )(?:True|False)",
    }
    namespace = b'(?<=")' + _any(names("Namespace")) + rb'(?=")|^' + _any(names("Namespace")) + rb"$"
    return _alternatives(fields), _alternatives({"namespace_itself": namespace, **fields})


def _alternatives(fields: Mapping[str, bytes]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(b"(?P<%b>%b)" % (name.encode(), field) for name, field in fields.items()))


def _any(words: Iterable[str]) -> bytes:
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    return b"(?:%b)" % b"|".join(re.escape(word).encode() for word in longest_first) if longest_first else b"(?!)"


class _Labelled(msgspec.Struct, rename="camel"):
    labels: dict[str, str] | None = None
    generate_name: str = ""


class _Shape(msgspec.Struct):
    metadata: _Labelled
