"""Every error a user can meet, on one page.

FederatorError
├── InvalidInput                 a value that was given is not allowed; names field, value and what is allowed
│   ├── MalformedSelector
│   ├── ClusterIDCollision       two names would share one ClusterID
│   ├── CursorMalformed          not a cursor
│   ├── CursorForged             claims this ledger but was not made by it
│   ├── PageTokenMalformed       not a page token, or not made by this ledger
│   └── PageTokenForeign         the page token of another request
├── NotFound
│   ├── UnknownCluster
│   ├── UnknownResourceType
│   ├── ObjectNotFound
│   └── IndexNotFound            no field index has the path
├── AmbiguousName                several clusters have the name and none was given
├── CursorForeign                a cursor of another ledger
├── CursorAhead                  a cursor from the future of this ledger
├── CursorExpired                the history it needs is compacted; carries the oldest revision to be had
├── RevisionExpired              the past that was asked for is compacted; carries the oldest revision to be had
│   └── PageTokenExpired         so is what the next page would be read from
├── QueryTooCostly               an answer would take more time, reading or memory than it may; names the limit
├── SelectionChanged             a cluster's labels have changed, and with them what a watch selects; carries a cursor
├── WatchTooSlow                 a client did not take a message of its watch or list in time; carries its last cursor
├── NotFreshYet                  the aggregator does not have yet what the answer was asked to contain
├── LimitReached                 as many calls or things of a kind as are allowed are there
├── IndexFromSettings            a field index that the settings name is to be dropped or changed
├── ClusterConnected             a cluster is to be removed while its agent is connected
├── SessionRefused               an agent may not push (yet)
│   ├── ClusterHeld              another live agent holds the ClusterID
│   ├── ClusterUIDChanged        the ClusterID belongs to another cluster
│   ├── ClusterUIDKnown          the cluster is already a member under another ClusterID
│   ├── ClusterRemoved           an operator has removed the cluster that the agent pushed for
│   ├── ClusterLeaving           the objects of the cluster that had the ClusterID are still being deleted
│   ├── SessionFenced            a newer session has taken over
│   └── IdentityRefused          the agent's certificate does not prove the ClusterID it speaks for
├── LedgerError                  the store cannot do what was asked
│   ├── LedgerLocked             another process uses it
│   ├── LedgerFull               no room; reading goes on
│   ├── LedgerCorrupt            a stored record is not what was written
│   ├── LedgerNotEmpty           a backup would replace what it has
│   └── BackupInvalid            a file is no whole and undamaged backup
├── KubeStatusError              an apiserver answered with a failure Status, as a reply or in a watch
├── MemberUnreachable            an apiserver could not be reached
├── CredentialsError             credentials could not be loaded or were not accepted
├── AggregatorUnreachable        the aggregator could not be reached
├── Incomplete                   the answer is not complete and completeness was demanded
└── TestbedError                 a control plane of the testbed could not be built or started

`ERRORS` maps the tree to its gRPC status, HTTP status and exit code; `federator.wire.status` carries it over gRPC and
back. Expired is never confused with lost; malformed input is refused, never treated as empty.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple


class FederatorError(Exception):
    """Base of all errors of federator.

    `reason` is the stable UPPER_SNAKE name that programs test; `metadata()` has every variable of the message.
    """

    reason: ClassVar[str] = "INTERNAL"

    def metadata(self) -> dict[str, str]:
        """Every variable of the message, as text, for google.rpc.ErrorInfo."""
        return {
            name: _text(value) for name, value in vars(self).items() if not name.startswith("_") and value is not None
        }


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii", "backslashreplace")
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value)


class InvalidInput(FederatorError):
    """A value that was given is not allowed."""

    reason = "INVALID_INPUT"

    def __init__(self, field: str, given: object, allowed: str) -> None:
        self.field = field
        self.given = _text(given)
        self.allowed = allowed
        super().__init__(f"{field}: {self.given!r} is not allowed; allowed: {allowed}")


class MalformedSelector(InvalidInput):
    """A label, field or cluster selector that does not parse.

    Attributes:
        position: offset in the selector, in characters from 0, of what cannot stand there; None where the selector as a
            whole is too long or too costly.
    """

    reason = "MALFORMED_SELECTOR"

    def __init__(self, field: str, given: object, allowed: str, position: int | None = None) -> None:
        text = _text(given)
        place = "" if position is None else _place(text, position)
        super().__init__(field + place, text if position is None else _excerpt(text, position), allowed)
        self.field = field
        self.position = position


def _place(text: str, position: int) -> str:
    return f", character {position} ({text[position]!r})" if position < len(text) else ", at its end"


def _excerpt(text: str, position: int) -> str:
    """A text, or the part of a long one around a position."""
    if len(text) <= 256:
        return text
    start, end = max(0, position - 64), position + 64
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


class ClusterIDCollision(InvalidInput):
    """Two names would share one ClusterID."""

    reason = "CLUSTER_ID_COLLISION"

    def __init__(self, cluster_id: str, names: tuple[str, ...]) -> None:
        super().__init__("cluster names", names, f"names with different ClusterIDs; these share {cluster_id!r}")
        self.cluster_id = cluster_id
        self.names = names


class CursorMalformed(InvalidInput):
    """Not a cursor."""

    reason = "CURSOR_MALFORMED"

    def __init__(self, cursor: bytes) -> None:
        super().__init__("cursor", cursor[:64], "a cursor as an earlier answer carried it")


class CursorForged(InvalidInput):
    """A cursor that names this ledger but was not made by it."""

    reason = "CURSOR_FORGED"

    def __init__(self, cursor: bytes) -> None:
        super().__init__("cursor", cursor[:64], "a cursor as an earlier answer carried it, unchanged")


class PageTokenMalformed(InvalidInput):
    """Not a page token, or one that this ledger did not make."""

    reason = "PAGE_TOKEN_MALFORMED"

    def __init__(self, field: str, token: bytes) -> None:
        super().__init__(field, token[:64], "a page token as the page before carried it, unchanged")


class PageTokenForeign(InvalidInput):
    """The page token of another request: a token goes on with the request it was an answer to."""

    reason = "PAGE_TOKEN_FOREIGN"

    def __init__(self, field: str, token: bytes) -> None:
        super().__init__(field, token[:64], "the page token of this very request; only page_size and limits may differ")


class NotFound(FederatorError):
    """What was asked for does not exist."""

    reason = "NOT_FOUND"


class UnknownCluster(NotFound):
    """No member cluster has this ID."""

    reason = "UNKNOWN_CLUSTER"

    def __init__(self, cluster_id: str, known: tuple[str, ...] = ()) -> None:
        self.cluster_id = cluster_id
        self.known = known
        listed = ", ".join(known) if known else "none"
        super().__init__(f"no member cluster {cluster_id!r}; known: {listed}")


class UnknownResourceType(NotFound):
    """No member cluster serves this resource type."""

    reason = "UNKNOWN_RESOURCE_TYPE"

    def __init__(self, resource: str) -> None:
        self.resource = resource
        super().__init__(
            f"no member cluster serves a resource type {resource!r}; "
            "allowed: plural, singular, short name, kind or category, optionally '.group' or '.version.group'"
        )


class ObjectNotFound(NotFound):
    """No object has this key."""

    reason = "OBJECT_NOT_FOUND"

    def __init__(self, resource: str, name: str, *, cluster_id: str = "", namespace: str = "") -> None:
        self.resource = resource
        self.name = name
        self.cluster_id = cluster_id
        self.namespace = namespace
        where = f"namespace {namespace!r} of " if namespace else ""
        where += f"cluster {cluster_id!r}" if cluster_id else "any cluster"
        super().__init__(f"{resource} {name!r} not found in {where}")


class IndexNotFound(NotFound):
    """No field index has this path."""

    reason = "INDEX_NOT_FOUND"

    def __init__(self, path: str, known: tuple[str, ...] = ()) -> None:
        self.path = path
        self.known = known
        super().__init__(f"no field index on {path!r}; there are: {', '.join(known) if known else 'none'}")


class AmbiguousName(FederatorError):
    """Several clusters have an object of this name and no cluster was given."""

    reason = "AMBIGUOUS_NAME"

    def __init__(self, resource: str, name: str, clusters: tuple[str, ...]) -> None:
        self.resource = resource
        self.name = name
        self.clusters = clusters
        super().__init__(f"{resource} {name!r} exists in clusters {', '.join(clusters)}; name one")


class CursorForeign(FederatorError):
    """A cursor of another ledger: nothing can be said about what happened since. List and watch anew."""

    reason = "CURSOR_FOREIGN"

    def __init__(self, cursor: bytes) -> None:
        self.cursor = cursor[:64]
        super().__init__("the cursor belongs to another ledger; start over with a list")


class CursorAhead(FederatorError):
    """A cursor that stands after the newest revision of this ledger."""

    reason = "CURSOR_AHEAD"

    def __init__(self, revision: int, newest: int) -> None:
        self.revision = revision
        self.newest = newest
        super().__init__(f"the cursor stands at revision {revision}, the newest here is {newest}")


class CursorExpired(FederatorError):
    """History behind this point is compacted. List and watch anew; deletions since are not known one by one."""

    reason = "CURSOR_EXPIRED"

    def __init__(self, revision: int, oldest: int) -> None:
        self.revision = revision
        self.oldest = oldest
        super().__init__(f"revision {revision} is compacted; the oldest to be had is {oldest}")


class RevisionExpired(FederatorError):
    """The state at a past revision cannot be told any more: history behind it is compacted.

    Attributes:
        revision: that was asked for.
        oldest: revision from which on the past can be told.
    """

    reason = "REVISION_EXPIRED"

    def __init__(self, revision: int, oldest: int) -> None:
        self.revision = revision
        self.oldest = oldest
        super().__init__(f"the state at revision {revision} is compacted; the oldest to be had is that at {oldest}")


class PageTokenExpired(RevisionExpired):
    """The revision that the pages of a list are of is compacted: the list has to be started anew."""

    reason = "PAGE_TOKEN_EXPIRED"


class QueryTooCostly(FederatorError):
    """An answer would take more than it may; nothing was answered.

    Attributes:
        limit: which limit was reached: `time_ms`, `scanned_objects`, `memory_bytes`, `groups`.
        allowed: how much was allowed, in the unit of the limit.
    """

    reason = "QUERY_TOO_COSTLY"

    def __init__(self, limit: str, allowed: int) -> None:
        self.limit = limit
        self.allowed = allowed
        super().__init__(
            f"the answer takes more than {limit} allows, {allowed}; narrow the question or raise the limit"
        )


class WatchTooSlow(FederatorError):
    """A client did not take a message of its watch or list in time; the stream is closed, nothing is lost.

    Attributes:
        cursor: where to resume; empty for a list and for a watch before INITIAL_END, which have to start over.
        deadline: seconds it had for one message.
    """

    reason = "WATCH_TOO_SLOW"

    def __init__(self, cursor: bytes, deadline: float) -> None:
        self.cursor = cursor
        self.deadline = deadline
        advice = "resume from the last cursor" if cursor else "start over"
        super().__init__(f"a message was not taken within {deadline:g} s; {advice}")


class SelectionChanged(FederatorError):
    """A cluster's labels have changed, and with them whether a watch selects it by its `cluster_selector`.

    What the watch has told is true of the clusters that it selected before. What there is of a cluster that came in has
    not been told as ADDED, and what there is of one that went out will not be told as DELETED.

    Attributes:
        cursor: everything of the selection as it was is told up to here, and from here on the same question means the
            selection as it is now: to be used by whoever lists the cluster that came in, or drops the one that went
            out. Empty where the change cannot be told exactly, as it was before the aggregator last started: the watch
            has to start over.
        cluster_id: the cluster.
        is_selected: whether it came in; else it went out.
    """

    reason = "SELECTION_CHANGED"

    def __init__(self, cursor: bytes, cluster_id: str, is_selected: bool) -> None:
        self.cursor = cursor
        self.cluster_id = cluster_id
        self.is_selected = is_selected
        what = "is selected now, which it was not" if is_selected else "is not selected any more"
        super().__init__(
            f"the labels of cluster {cluster_id!r} have changed: it {what}"
            if cursor
            else f"the labels of cluster {cluster_id!r} may have changed since; start over"
        )


class NotFreshYet(FederatorError):
    """The aggregator does not have yet, or never will, what the answer was asked to contain.

    Attributes:
        cluster_id: the member.
        resource: the type.
        resource_version: up to which everything was asked for.
        low_water: up to which everything is here, or "".
        state: the type's state, ABSENT where the cluster does not serve it.
        cause: why it is not here.
        proved_age: seconds since the apiserver last gave a sign for the type; None if never to this process.
        helps_to_wait: whether asking again later may help.
    """

    reason = "NOT_FRESH"

    def __init__(
        self,
        cluster_id: str,
        resource: str,
        resource_version: str,
        *,
        low_water: str,
        state: str,
        cause: str,
        proved_age: float | None,
        helps_to_wait: bool,
    ) -> None:
        self.cluster_id = cluster_id
        self.resource = resource
        self.resource_version = resource_version
        self.low_water = low_water
        self.state = state
        self.cause = cause
        self.proved_age = proved_age
        self.helps_to_wait = helps_to_wait
        proved = "never proved to this process" if proved_age is None else f"last proved {proved_age:.1f} s ago"
        super().__init__(
            f"{resource} of cluster {cluster_id!r} are here up to resourceVersion {low_water or 'none'}, "
            f"{resource_version} was asked for: {cause}; {state}, {proved}"
        )


class IndexFromSettings(FederatorError):
    """A field index that the settings name cannot be dropped or changed at run time: the next start would undo it."""

    reason = "INDEX_FROM_SETTINGS"

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"the index on {path} is one of the settings; take it out there")


class LimitReached(FederatorError):
    """As many calls or things of a kind as are allowed are there; one more may be when another has ended.

    Attributes:
        what: of which kind.
        limit: how many there may be.
    """

    reason = "LIMIT_REACHED"

    def __init__(self, what: str, limit: int) -> None:
        self.what = what
        self.limit = limit
        super().__init__(f"there are {limit} {what}, no more are allowed")


class ClusterConnected(FederatorError):
    """A cluster is to be removed while its agent is connected."""

    reason = "CLUSTER_CONNECTED"

    def __init__(self, cluster_id: str, agent_instance: str) -> None:
        self.cluster_id = cluster_id
        self.agent_instance = agent_instance
        super().__init__(
            f"the agent {agent_instance} of cluster {cluster_id!r} is connected; stop it first, or remove the cluster "
            "with --force, which ends its session"
        )


class SessionRefused(FederatorError):
    """An agent may not push (yet)."""

    reason = "SESSION_REFUSED"


class ClusterHeld(SessionRefused):
    """Another live agent holds the ClusterID; this one waits as a standby."""

    reason = "CLUSTER_HELD"

    def __init__(self, cluster_id: str, agent_instance: str) -> None:
        self.cluster_id = cluster_id
        self.agent_instance = agent_instance
        super().__init__(f"cluster {cluster_id!r} is held by the live agent {agent_instance}")


class ClusterUIDChanged(SessionRefused):
    """The ClusterID belongs to a cluster with another UID."""

    reason = "CLUSTER_UID_CHANGED"

    def __init__(self, cluster_id: str, known_uid: str, given_uid: str) -> None:
        self.cluster_id = cluster_id
        self.known_uid = known_uid
        self.given_uid = given_uid
        super().__init__(
            f"cluster {cluster_id!r} is known with UID {known_uid}, the agent reaches {given_uid}; "
            f"to let the new cluster take the name, remove the old one with 'federator clusters remove {cluster_id}', "
            "or start the agent with --replace"
        )


class ClusterUIDKnown(SessionRefused):
    """The cluster is already a member under another ClusterID."""

    reason = "CLUSTER_UID_KNOWN"

    def __init__(self, cluster_id: str, cluster_uid: str, holder: str) -> None:
        self.cluster_id = cluster_id
        self.cluster_uid = cluster_uid
        self.holder = holder
        super().__init__(f"cluster {cluster_id!r} has UID {cluster_uid}, which is already a member as {holder!r}")


class ClusterRemoved(SessionRefused):
    """An operator has removed the cluster that the agent pushed for; another agent process may join with it anew."""

    reason = "CLUSTER_REMOVED"

    def __init__(self, cluster_id: str, agent_instance: str) -> None:
        self.cluster_id = cluster_id
        self.agent_instance = agent_instance
        super().__init__(
            f"cluster {cluster_id!r} was removed; the agent {agent_instance}, which pushed for it, has to be stopped, "
            "or started anew to join again"
        )


class ClusterLeaving(SessionRefused):
    """The objects of the cluster that had the ClusterID are still being deleted; the next may join after that."""

    reason = "CLUSTER_LEAVING"

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        super().__init__(f"cluster {cluster_id!r} was removed and its objects are still being deleted; try again")


class SessionFenced(SessionRefused):
    """A newer session of the same cluster has taken over; nothing of this one is taken any more."""

    reason = "SESSION_FENCED"

    def __init__(self, cluster_id: str, term: int, newest_term: int) -> None:
        self.cluster_id = cluster_id
        self.term = term
        self.newest_term = newest_term
        super().__init__(f"session {term} of cluster {cluster_id!r} is fenced by session {newest_term}")


class IdentityRefused(SessionRefused):
    """An agent's certificate does not prove the ClusterID that it speaks for."""

    reason = "IDENTITY_REFUSED"

    def __init__(self, cluster_id: str, cause: str) -> None:
        self.cluster_id = cluster_id
        self.cause = cause
        super().__init__(f"an agent may not speak for cluster {cluster_id!r}: {cause}")


class LedgerError(FederatorError):
    """The ledger cannot do what was asked."""

    reason = "LEDGER_ERROR"


class LedgerLocked(LedgerError):
    """Another process uses the ledger, and what was asked for needs it alone.

    Attributes:
        path: folder of the ledger.
        doing: what the other process does with it, e.g. "appends to".
    """

    reason = "LEDGER_LOCKED"

    def __init__(self, path: str, doing: str = "appends to") -> None:
        self.path = path
        self.doing = doing
        super().__init__(f"another process {doing} the ledger in {path}; it has to end first")


class LedgerFull(LedgerError):
    """The ledger has no room left; reading goes on, nothing new is taken."""

    reason = "LEDGER_FULL"

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"the ledger in {path} is full")


class LedgerCorrupt(LedgerError):
    """What is stored is not what was written: a record's checksum differs, or the file itself is damaged."""

    reason = "LEDGER_CORRUPT"
    _table: str = ""
    _key: bytes = b""

    def __init__(self, path: str, record: str) -> None:
        self.path = path
        self.record = record
        super().__init__(f"the ledger in {path} is damaged at {record}; restore it, or move it away and let it refill")

    @classmethod
    def at(cls, path: str, table: str, key: bytes, *, is_missing: bool = False) -> LedgerCorrupt:
        """The error for one record; the pages around it may be sound."""
        error = cls(path, f"{table} {key.hex()}{', which is missing' if is_missing else ''}")
        error._table, error._key = table, key
        return error

    @property
    def table(self) -> str:
        """The table of the one record that is damaged; empty where it is not known to be one."""
        return self._table

    @property
    def key(self) -> bytes:
        """The key of that record."""
        return self._key


class LedgerNotEmpty(LedgerError):
    """A backup would replace what the ledger has."""

    reason = "LEDGER_NOT_EMPTY"

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"the ledger in {path} is not empty; --force sets it aside")


class BackupInvalid(LedgerError):
    """A file is no whole and undamaged backup of a ledger."""

    reason = "BACKUP_INVALID"

    def __init__(self, path: str, cause: str) -> None:
        self.path = path
        self.cause = cause
        super().__init__(f"{path} cannot be used as a backup: {cause}")


class KubeStatusError(FederatorError):
    """A member's apiserver answered with a failure Status, as the reply or as an ERROR frame of a watch.

    Attributes:
        code: HTTP code of the Status.
        status_reason: its machine-readable reason, e.g. "Expired", "Forbidden"; may be empty.
        causes: reasons of `details.causes`.
        retry_after: seconds the server asks to wait, or None.
        in_stream: it came as an ERROR frame of a watch.
    """

    reason = "KUBE_STATUS"

    def __init__(
        self,
        code: int,
        status_reason: str,
        message: str,
        *,
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
        in_stream: bool = False,
    ) -> None:
        self.code = code
        self.status_reason = status_reason
        self.message = message
        self.causes = causes
        self.retry_after = retry_after
        self.in_stream = in_stream
        super().__init__(f"{code} {status_reason}: {message}" if status_reason else f"{code}: {message}")

    @property
    def is_expired(self) -> bool:
        """The asked resourceVersion or continue token is out of history."""
        return self.status_reason in {"Expired", "Gone"} or (self.code == 410 and self.status_reason in {"", "Unknown"})

    @property
    def is_too_large_resource_version(self) -> bool:
        """The server has not yet seen the asked resourceVersion, in any of its three dialects."""
        return "ResourceVersionTooLarge" in self.causes or (
            (self.status_reason == "Timeout" or self.code == 504) and "Too large resource version" in self.message
        )


class MemberUnreachable(FederatorError):
    """A member's apiserver could not be reached, or the connection broke off."""

    reason = "MEMBER_UNREACHABLE"

    def __init__(self, server: str, cause: str) -> None:
        self.server = server
        self.cause = cause
        super().__init__(f"cannot reach {server}: {cause}")


class CredentialsError(FederatorError):
    """Credentials could not be loaded, or the server did not accept them."""

    reason = "CREDENTIALS"

    def __init__(self, context: str, cause: str) -> None:
        self.context = context
        self.cause = cause
        super().__init__(f"credentials of {context!r}: {cause}")


class AggregatorUnreachable(FederatorError):
    """The aggregator could not be reached; without an address where it says so itself."""

    reason = "AGGREGATOR_UNREACHABLE"

    def __init__(self, address: str, cause: str) -> None:
        self.address = address
        self.cause = cause
        super().__init__(f"cannot reach the aggregator{f' at {address}' if address else ''}: {cause}")


class Incomplete(FederatorError):
    """Completeness was demanded and some asked cluster or type is not live."""

    reason = "INCOMPLETE"

    def __init__(self, clusters: tuple[str, ...]) -> None:
        self.clusters = clusters
        super().__init__(f"not live: {', '.join(clusters)}")


class TestbedError(FederatorError):
    """A control plane of the testbed could not be built or started."""

    reason = "TESTBED"
    __test__ = False  # not a test class, whatever its name suggests to collectors


class Outcome(NamedTuple):
    """What an error becomes outside the process.

    Attributes:
        grpc: name of the gRPC status code.
        http: HTTP status.
        exit: exit code of the CLI.
    """

    grpc: str
    http: int
    exit: int


ERRORS: dict[type[FederatorError], Outcome] = {
    FederatorError: Outcome("INTERNAL", 500, 1),
    InvalidInput: Outcome("INVALID_ARGUMENT", 400, 2),
    MalformedSelector: Outcome("INVALID_ARGUMENT", 400, 2),
    ClusterIDCollision: Outcome("INVALID_ARGUMENT", 400, 2),
    CursorMalformed: Outcome("INVALID_ARGUMENT", 400, 4),
    CursorForged: Outcome("INVALID_ARGUMENT", 400, 4),
    PageTokenMalformed: Outcome("INVALID_ARGUMENT", 400, 2),
    PageTokenForeign: Outcome("INVALID_ARGUMENT", 400, 2),
    NotFound: Outcome("NOT_FOUND", 404, 1),
    UnknownCluster: Outcome("NOT_FOUND", 404, 1),
    UnknownResourceType: Outcome("NOT_FOUND", 404, 1),
    ObjectNotFound: Outcome("NOT_FOUND", 404, 1),
    IndexNotFound: Outcome("NOT_FOUND", 404, 1),
    AmbiguousName: Outcome("FAILED_PRECONDITION", 409, 1),
    CursorForeign: Outcome("FAILED_PRECONDITION", 410, 4),
    CursorAhead: Outcome("FAILED_PRECONDITION", 410, 4),
    CursorExpired: Outcome("OUT_OF_RANGE", 410, 4),
    RevisionExpired: Outcome("OUT_OF_RANGE", 410, 4),
    PageTokenExpired: Outcome("OUT_OF_RANGE", 410, 4),
    QueryTooCostly: Outcome("RESOURCE_EXHAUSTED", 429, 1),
    SelectionChanged: Outcome("ABORTED", 409, 1),
    WatchTooSlow: Outcome("RESOURCE_EXHAUSTED", 429, 1),
    NotFreshYet: Outcome("UNAVAILABLE", 503, 3),
    LimitReached: Outcome("RESOURCE_EXHAUSTED", 429, 1),
    IndexFromSettings: Outcome("FAILED_PRECONDITION", 409, 1),
    ClusterConnected: Outcome("FAILED_PRECONDITION", 409, 1),
    SessionRefused: Outcome("FAILED_PRECONDITION", 409, 1),
    ClusterHeld: Outcome("FAILED_PRECONDITION", 409, 1),
    ClusterUIDChanged: Outcome("FAILED_PRECONDITION", 409, 1),
    ClusterUIDKnown: Outcome("FAILED_PRECONDITION", 409, 1),
    ClusterRemoved: Outcome("FAILED_PRECONDITION", 409, 1),
    ClusterLeaving: Outcome("FAILED_PRECONDITION", 409, 1),
    SessionFenced: Outcome("ABORTED", 409, 1),
    IdentityRefused: Outcome("PERMISSION_DENIED", 403, 1),
    LedgerError: Outcome("INTERNAL", 500, 1),
    LedgerLocked: Outcome("FAILED_PRECONDITION", 409, 1),
    LedgerFull: Outcome("RESOURCE_EXHAUSTED", 507, 1),
    LedgerCorrupt: Outcome("DATA_LOSS", 500, 1),
    LedgerNotEmpty: Outcome("FAILED_PRECONDITION", 409, 1),
    BackupInvalid: Outcome("DATA_LOSS", 500, 1),
    KubeStatusError: Outcome("UNKNOWN", 502, 1),
    MemberUnreachable: Outcome("UNAVAILABLE", 503, 1),
    CredentialsError: Outcome("UNAUTHENTICATED", 401, 1),
    AggregatorUnreachable: Outcome("UNAVAILABLE", 503, 1),
    Incomplete: Outcome("FAILED_PRECONDITION", 503, 3),
    TestbedError: Outcome("INTERNAL", 500, 1),
}
"""Outcome of each class. A class that is not in the table takes its nearest base's."""


def outcome(error: FederatorError) -> Outcome:
    """The outcome of an error: that of its class, or of the nearest base that has one."""
    return next(ERRORS[base] for base in type(error).__mro__ if base in ERRORS)
