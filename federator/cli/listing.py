"""Lists: asking, writing what comes, and saying what does not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from federator.cli.arguments import Query
from federator.cli.freshness import freshness_warnings, united
from federator.cli.messages import counted, error, note, say, warn
from federator.cli.output.writer import ObjectWriter
from federator.client import InventoryClient, InventoryObject, ListSummary, Moment
from federator.errors import ObjectNotFound


class Listed(NamedTuple):
    """How the objects of a query are listed, its fields named as the client's calls name them.

    Attributes:
        limit: at most this many objects for each query; 0 for no limit.
        order_by: as the aggregator takes it.
        at: when; None for the present.
        page_size: objects asked for at once; 0 for all.
    """

    limit: int = 0
    order_by: str = ""
    at: Moment | None = None
    page_size: int = 0


class Answer(NamedTuple):
    """What came back for one query.

    Attributes:
        query: the query.
        found: number of objects.
        summary: the list's summary.
    """

    query: Query
    found: int
    summary: ListSummary


async def write_list(
    client: InventoryClient, queries: Sequence[Query], writer: ObjectWriter, listed: Listed, *, streamed: bool
) -> list[Answer]:
    """Writes all that is asked for.

    Args:
        client: whom to ask.
        queries: at least one; all with a name, or one without.
        writer: takes the objects.
        listed: how they are listed.
        streamed: write page by page, for formats that need not know the whole; nothing is kept then.

    Returns:
        One answer for each query.
    """
    items: list[InventoryObject] = []
    answers = []
    for query in queries:
        found = 0
        summary = None
        async with aclosing(client.pages(**query._asdict(), **listed._asdict())) as pages:
            async for page in pages:
                summary = page.summary
                found += len(page.objects)
                if streamed:
                    await writer.write_list(page.objects, revision=None, single=False)
                else:
                    items.extend(page.objects)
        assert summary is not None  # else the iteration has raised
        answers.append(Answer(query, found, summary))
    named = bool(queries[0].name)
    if not streamed and (items or not named):
        alone = len(answers) == 1
        await writer.write_list(items, revision=answers[0].summary.revision if alone else None, single=alone and named)
    return answers


def say_when(answers: Sequence[Answer]) -> None:
    """Says on stderr of which moment the answers are; a time that was asked for has become a revision."""
    revisions = sorted({answer.summary.revision for answer in answers})
    note(f"as of revision {', '.join(map(str, revisions))}; how fresh the clusters are is of now.")


def say_what_is_missing(answers: Sequence[Answer], *, say_empty: bool) -> None:
    """Says on stderr what the answers lack: what the limit cut off, and what is not live.

    Args:
        answers: the answers.
        say_empty: say so if nothing was found.
    """
    clusters = united(answer.summary.clusters.values() for answer in answers)
    found = sum(answer.found for answer in answers)
    total = sum(answer.summary.total for answer in answers)
    if found < total:
        note(f"{found} of {total} objects shown, because of --limit.")
    if not found and say_empty:
        say(f"No resources found in {counted(len(clusters), 'cluster')}.")
    complete = all(answer.summary.complete for answer in answers)
    for warning in freshness_warnings(clusters, complete=complete):
        warn(warning)


def require_names(answers: Sequence[Answer]) -> None:
    """Says which of the names asked for nobody has.

    Raises:
        ObjectNotFound: there is one; of several, those before the last were said already.
    """
    missing = [
        ObjectNotFound(
            ",".join(query.resources), query.name, cluster_id=",".join(query.clusters), namespace=query.namespace
        )
        for query, found, _ in answers
        if query.name and not found
    ]
    for further in missing[:-1]:
        error(str(further))
    if missing:
        raise missing[-1]
