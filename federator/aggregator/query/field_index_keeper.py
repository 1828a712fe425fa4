"""Field index keeper: which fields are indexed, over restarts, and the task that builds their indexes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from federator.aggregator.ledger.files import sync_folder
from federator.aggregator.ledger.tables import FILE_MODE
from federator.aggregator.merge.field_indexes import MAX_INDEXES, FieldIndex
from federator.aggregator.merge.merged_indexer import MergedIndexer
from federator.aggregator.merge.selection import INDEXED_FIELDS
from federator.api.field_path import FieldPath, format_field_path, parse_field_path
from federator.api.resource import GroupResource
from federator.errors import IndexFromSettings, IndexNotFound, InvalidInput, LedgerError, LimitReached

log = structlog.get_logger(__name__)

FILE = "field-indexes.json"
"""In the state directory: the indexes that were declared at run time."""

PAUSE = 0.002
"""Seconds between two steps of building, which take as long: half of a core at most, and none that a commit waits for.
"""

MAX_PATH = 256
"""Characters of an indexed path: each is the value of a metric's label."""

_SETTING_GRAMMAR = (
    "PATH or PATH@TYPE+TYPE, where a type is its plural name and group, such as spec.replicas@deployments.apps"
)
_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_TYPE = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")


class DeclaredIndex(msgspec.Struct, frozen=True):
    """An index that somebody wants.

    Attributes:
        path: of the field, as `format_field_path` writes it.
        resources: types whose objects are indexed, as `GroupResource` writes itself, sorted; empty for all.
    """

    path: str
    resources: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, *, field: str = "field-index") -> DeclaredIndex:
        """Reads `PATH`, or `PATH@TYPE+TYPE...` where types are plural, with their group: `deployments.apps`.

        Args:
            text: as a setting has it.
            field: name of the setting, for the message.

        Raises:
            InvalidInput: it is no path, none that needs an index, or a type is none.
        """
        path_text, at, types = text.rpartition("@") if "@" in text else (text, "", "")
        path = indexed_path(path_text, field=field)
        resources = tuple(sorted({name.strip() for name in types.split("+")})) if at else ()
        if not all(map(_TYPE.fullmatch, resources)):
            raise InvalidInput(field, text, _SETTING_GRAMMAR)
        return cls(format_field_path(path), resources)

    @property
    def field_path(self) -> FieldPath:
        """The path, parsed."""
        return parse_field_path(self.path)

    @property
    def group_resources(self) -> frozenset[GroupResource] | None:
        """The types; None for all."""
        return frozenset(map(_group_resource, self.resources)) or None


def declared_indexes(texts: Iterable[str], *, field: str = "field-index") -> tuple[DeclaredIndex, ...]:
    """Reads the indexes of a setting, each as `DeclaredIndex.parse` does.

    Raises:
        InvalidInput: one is none, or two are on one path.
        LimitReached: there are more than there may be.
    """
    declared = tuple(DeclaredIndex.parse(text, field=field) for text in texts)
    paths = [each.path for each in declared]
    for path in paths:
        if paths.count(path) > 1:
            raise InvalidInput(field, path, "each path once; several types of one are joined by '+'")
    if len(paths) > MAX_INDEXES:
        raise LimitReached("field indexes", MAX_INDEXES)
    return declared


def indexed_path(text: str, *, field: str = "path") -> FieldPath:
    """Reads the path of a field that can be indexed.

    Raises:
        InvalidInput: it is no path, too long, or every object is indexed by it anyway.
    """
    path = parse_field_path(text, field=field)
    if path in INDEXED_FIELDS:
        always = ", ".join(sorted(map(format_field_path, INDEXED_FIELDS)))
        raise InvalidInput(field, format_field_path(path), f"another field: {always} are always indexed")
    if len(format_field_path(path)) > MAX_PATH:
        raise InvalidInput(field, f"{text[:64]}...", f"a path of at most {MAX_PATH} characters")
    return path


class FieldIndexKeeper:
    """Declares and drops field indexes, and builds those that are new.

    What was declared at run time is in a file of the state directory before anybody is told so, and is declared again
    by the next start. Those of the settings are declared by each start, and cannot be dropped.
    """

    def __init__(self, indexer: MergedIndexer, from_settings: Iterable[DeclaredIndex], directory: Path | None) -> None:
        """Declares what is wanted, to be built by `run`. A damaged file is set aside, which the log says.

        Args:
            indexer: has the indexes.
            from_settings: those of the settings, each path once.
            directory: the state directory; None to keep what is declared in memory only.

        Raises:
            LedgerError: the file cannot be read, or set aside.
            LimitReached: there are more than there may be.
        """
        self._indexer = indexer
        self._file = None if directory is None else directory / FILE
        self._from_settings = {declared.path: declared for declared in from_settings}
        self._declared = {declared.path: declared for declared in self._read()}
        self._is_new = asyncio.Event()
        for declared in (self._declared | self._from_settings).values():
            self._add(declared)

    async def run(self) -> None:
        """Builds what is declared, until cancelled."""
        while True:
            self._is_new.clear()
            for _ in self._indexer.building_fields():
                await asyncio.sleep(PAUSE)
            await self._is_new.wait()

    def add(self, declared: DeclaredIndex) -> bool:
        """Declares an index durably; one on the same path for other types is built anew for these.

        Blocks for an fsync of a small file: an operator's doing, and whole or not at all.

        Returns:
            whether it is new.

        Raises:
            IndexFromSettings: the settings name the path for other types.
            LimitReached: there are as many as there may be.
            LedgerError: the file cannot be written; everything is as it was.
        """
        configured = self._from_settings.get(declared.path)
        if configured is not None and configured != declared:
            raise IndexFromSettings(declared.path)
        if declared in (configured, self._declared.get(declared.path)):
            return False
        paths = {index.name for index in self._indexer.fields}
        if declared.path not in paths and len(paths) >= MAX_INDEXES:
            raise LimitReached("field indexes", MAX_INDEXES)
        self._keep(self._declared | {declared.path: declared})
        self._add(declared)
        log.info("field index declared", path=declared.path, resources=declared.resources)
        return True

    def drop(self, path: FieldPath) -> None:
        """Takes an index back, durably. Blocks as `add` does.

        Raises:
            IndexNotFound: there is none.
            IndexFromSettings: the settings name it.
            LedgerError: the file cannot be written; everything is as it was.
        """
        name = format_field_path(path)
        if name in self._from_settings:
            raise IndexFromSettings(name)
        if name not in self._declared:
            raise IndexNotFound(name, tuple(index.name for index in self._indexer.fields))
        self._keep({other: declared for other, declared in self._declared.items() if other != name})
        self._indexer.fields.drop(path)
        log.info("field index dropped", path=name)

    def is_from_settings(self, index: FieldIndex) -> bool:
        """Whether the settings name an index."""
        return index.name in self._from_settings

    def statistics(self) -> Mapping[str, int]:
        """How many were declared at run time."""
        return {"declared_field_indexes": len(self._declared)}

    def _add(self, declared: DeclaredIndex) -> None:
        self._indexer.fields.add(declared.field_path, declared.group_resources)
        self._is_new.set()

    def _keep(self, declared: dict[str, DeclaredIndex]) -> None:
        if self._file is not None:
            _write(self._file, tuple(declared.values()))
        self._declared = declared

    def _read(self) -> tuple[DeclaredIndex, ...]:
        if self._file is None:
            return ()
        try:
            try:
                return _parse(self._file.read_bytes())
            except FileNotFoundError:
                return ()
            except (msgspec.MsgspecError, UnicodeError, InvalidInput) as error:
                aside = self._file.with_suffix(".damaged")
                self._file.replace(aside)
                log.error("list of field indexes is damaged, set aside", file=str(aside), cause=str(error))
                return ()
        except OSError as error:
            raise LedgerError(f"{self._file} cannot be read: {error.strerror}") from error


def _parse(content: bytes) -> tuple[DeclaredIndex, ...]:
    declared = msgspec.json.decode(content, type=tuple[DeclaredIndex, ...])
    for each in declared:
        indexed_path(each.path)
    return declared


def _write(file: Path, declared: tuple[DeclaredIndex, ...]) -> None:
    """Writes the file anew, whole or not at all: first under another name."""
    written = file.with_suffix(".new")
    try:
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.json.encode(declared))
            opened.flush()
            os.fsync(descriptor)
        written.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        raise LedgerError(f"{file} cannot be written: {error.strerror}") from error


def _group_resource(text: str) -> GroupResource:
    resource, _, group = text.partition(".")
    return GroupResource(group, resource)
