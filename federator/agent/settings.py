"""What an agent can be told. Each field says its unit, its default's reason, and who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from federator.api.cluster import ClusterID
from federator.api.label import check_cluster_labels
from federator.errors import InvalidInput
from federator.wire.tls import TLSFiles

KIB = 1024
MIB = 1024 * KIB

LEAST_AUDIT_INTERVAL = 60.0
"""Seconds."""


class SecretMode(StrEnum):
    """What of a Secret leaves its cluster; values never do."""

    OFF = "off"
    """Secrets are not collected."""
    METADATA = "metadata"
    """Only metadata is asked of the apiserver."""
    FINGERPRINT = "fingerprint"
    """Each value is replaced by its length and a keyed hash."""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one agent: one cluster, one aggregator.

    Attributes:
        cluster_id: ClusterID under which the cluster joins.
        aggregator: address of the aggregator's ingest listener, `unix:/path` or `host:port`. Without `tls` only unix
            sockets and loopback addresses.
        tls: certificate that proves the ClusterID, and authority of the aggregator's; None for plaintext. Read again
            for each session.
        display_name: name the operator knows the cluster by; empty for the ClusterID.
        source: where the cluster's credentials came from: "kubeconfig" or "in-cluster".
        cluster_labels: the cluster's own labels, by which questions select clusters; at most 64, as Kubernetes' labels
            may be. None: what they would say is for the operator to know.
        replace: let this cluster take the ClusterID from another cluster UID, whose objects then leave as deletions.
        resources: names of the types to collect, as kubectl takes them; empty for all but the default denials
            (`federator.agent.selection`).
        waits_for_types: go on where the cluster serves none of them yet. False: a name is rather misspelt.
        namespace: collect only this namespace; empty for all.
        label_selector: collect only objects matching it; empty for all. Given to the apiserver as it is.
        secrets: what of a Secret leaves its cluster. Off: whoever wants more has to say so.
        secrets_key_file: file whose content keys the hashes of fingerprint mode; None for lengths only.
        discovery_interval: seconds between two looks at discovery. 60: two requests a minute, and the net below the
            prompt path through CustomResourceDefinitions.
        discovery_debounce: seconds from a changed CustomResourceDefinition to the look at discovery. 1: what changes
            together is seen together, and the apiserver needs a moment to serve a new type.
        discovery_confirm: seconds after which discovery is asked again before a type counts as absent and its objects
            go. 5: an apiserver that just started may not yet serve what its CustomResourceDefinitions define.
        stale_after: seconds a type's reflector may fail before the type is told to be STALE. 5: a watch that is
            reopened at once is nobody's business.
        audit_interval: seconds in which each type is once compared with what its apiserver lists; 0 for never, else at
            least 60. 3600: a list of metadata an hour for each type, at two requests a second at most.
        spool_directory: folder of a file in which unacknowledged changes outlive the process; None for memory only.
        spool_bytes: bound on that file's changes. 256 MiB: four times what is queued before it is listed anew, so that
            it is reached only together with other faults.
        outbox_bytes: bound on the bytes of unsent changes, snapshots excluded. 64 MiB: about 60,000 changed pods.
        batch_window: seconds for which changes wait for others in a storm (`BatchWindow`); 0 for never.
            0.2: five frames a second of each type instead of hundreds, while thousands of objects change.
        frame_bytes: size at which a frame is cut. 512 KiB: half of what a ledger commit takes, so no frame splits.
        welcome_timeout: seconds the aggregator has to answer Hello. 10.
        backoff_min: seconds; upper end of the first wait before reconnecting. 0.5.
        backoff_max: seconds; upper end of the longest wait. 15: with full jitter, 1,000 agents of a dead aggregator
            make 133 connects a second.
        flush_timeout: seconds that a stopping agent goes on sending what it has. 5: below the usual 30 s of grace.
    """

    cluster_id: ClusterID
    aggregator: str
    tls: TLSFiles | None = None
    display_name: str = ""
    source: str = "kubeconfig"
    cluster_labels: Mapping[str, str] = {}
    replace: bool = False
    resources: tuple[str, ...] = ()
    waits_for_types: bool = False
    namespace: str = ""
    label_selector: str = ""
    secrets: SecretMode = SecretMode.OFF
    secrets_key_file: Path | None = None
    discovery_interval: float = 60.0
    discovery_debounce: float = 1.0
    discovery_confirm: float = 5.0
    stale_after: float = 5.0
    audit_interval: float = 3600.0
    spool_directory: Path | None = None
    spool_bytes: int = 256 * MIB
    outbox_bytes: int = 64 * MIB
    batch_window: float = 0.2
    frame_bytes: int = 512 * KIB
    welcome_timeout: float = 10.0
    backoff_min: float = 0.5
    backoff_max: float = 15.0
    flush_timeout: float = 5.0

    def __post_init__(self) -> None:
        """Checks what no other part would.

        Raises:
            InvalidInput: `audit_interval` is neither 0 nor 60 or more, or `cluster_labels` cannot be a cluster's.
        """
        check_cluster_labels(self.cluster_labels, field="cluster-label")
        if self.audit_interval != 0 and not self.audit_interval >= LEAST_AUDIT_INTERVAL:
            allowed = f"0 for never, or {LEAST_AUDIT_INTERVAL:g} seconds or more"
            raise InvalidInput("audit-interval", f"{self.audit_interval:g}", allowed)
