"""Objects as tables: a block for each type, with the columns of its printer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from federator.api.resource import GroupResource
from federator.cli.output.table import Table
from federator.cli.output.writer import Write
from federator.cli.printers import Manifest, Printer, printer_for
from federator.cli.printers.labels import format_labels
from federator.cli.printers.printer import mapping_at
from federator.cli.printers.registry import built_in_printer
from federator.client import EventType, InventoryClient, InventoryObject
from federator.errors import UnknownResourceType

_EVENT_WIDTH = max(map(len, (EventType.ADDED, EventType.MODIFIED, EventType.DELETED)))
"""Of the column from its first row on, so that those which come later stand below it."""

_DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


class TableOptions(NamedTuple):
    """How tables look.

    Attributes:
        wide: with the columns of `-o wide`.
        show_header: with a header over each block.
        show_namespace: with a column NAMESPACE, where the type has namespaces.
        show_labels: with a column LABELS.
        show_events: with a column EVENT.
        several_types: names are written `type/name` from the start, since several types were asked for.
    """

    wide: bool = False
    show_header: bool = True
    show_namespace: bool = True
    show_labels: bool = False
    show_events: bool = False
    several_types: bool = False


class _Block(NamedTuple):
    table: Table
    printer: Printer
    show_namespace: bool


class ObjectTableWriter:
    """Writes objects as kubectl does, CLUSTER first."""

    def __init__(self, client: InventoryClient, write: Write, options: TableOptions) -> None:
        self._client = client
        self._write = write
        self._options = options
        self._several_types = options.several_types
        self._blocks: dict[GroupResource, _Block] = {}
        self._current: GroupResource | None = None

    async def write_list(self, items: Sequence[InventoryObject], *, revision: int | None, single: bool) -> None:
        """Writes a block for each type."""
        del revision, single
        by_type: dict[GroupResource, list[InventoryObject]] = {}
        for item in items:
            by_type.setdefault(item.group_resource, []).append(item)
        self._several_types = self._several_types or len(by_type) > 1
        for of_type in by_type.values():
            await self._write_rows(of_type, EventType.ADDED)

    async def write_change(self, change: EventType, item: InventoryObject) -> None:
        """Writes the object's row, under a header where the row before was of another type."""
        await self._write_rows([item], change)

    async def _write_rows(self, items: Sequence[InventoryObject], change: EventType) -> None:
        block = await self._block(items)
        now = datetime.now(UTC)
        self._write(block.table.text(self._row(block, item, change, now) for item in items))

    async def _block(self, items: Sequence[InventoryObject]) -> _Block:
        """The block of the objects' type, opened if it is not the current one."""
        group_resource = items[0].group_resource
        block = self._blocks.get(group_resource)
        if block is None:
            block = self._blocks[group_resource] = await self._new_block(group_resource, items)
            self._several_types = self._several_types or len(self._blocks) > 1
        elif group_resource != self._current and self._options.show_header:
            block.table.repeat_header()
        if self._current not in {None, group_resource} and self._options.show_header:
            self._write("\n")
        self._current = group_resource
        return block

    async def _new_block(self, group_resource: GroupResource, items: Sequence[InventoryObject]) -> _Block:
        printer = built_in_printer(group_resource) or printer_for(
            group_resource, await self._definitions(group_resource), {item.version for item in items}
        )
        show_namespace = self._options.show_namespace and bool(items[0].namespace)
        header = [
            *(["EVENT"] if self._options.show_events else []),
            "CLUSTER",
            *(["NAMESPACE"] if show_namespace else []),
            *printer.header(wide=self._options.wide),
            *(["LABELS"] if self._options.show_labels else []),
        ]
        return _Block(Table(header, show_header=self._options.show_header), printer, show_namespace)

    async def _definitions(self, group_resource: GroupResource) -> list[Manifest]:
        """The type's CustomResourceDefinitions, as far as agents collect them."""
        if "." not in group_resource.group:
            return []
        try:
            found = await self._client.list(_DEFINITIONS, name=str(group_resource))
        except UnknownResourceType:
            return []
        return [item.to_dict() for item in found.items]

    def _row(self, block: _Block, item: InventoryObject, change: EventType, now: datetime) -> list[str]:
        manifest = item.to_dict()
        cells = list(block.printer.cells(manifest, now, wide=self._options.wide))
        if self._several_types and "NAME" in (header := block.printer.header(wide=self._options.wide)):
            kind = f"{item.kind}.{item.group}" if item.group else item.kind
            cells[header.index("NAME")] = f"{kind.lower()}/{item.name}"
        return [
            *([str(change).ljust(_EVENT_WIDTH)] if self._options.show_events else []),
            item.cluster_id,
            *([item.namespace] if block.show_namespace else []),
            *cells,
            *([format_labels(mapping_at(manifest, "metadata", "labels"))] if self._options.show_labels else []),
        ]
