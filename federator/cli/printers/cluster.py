"""The cluster itself: nodes, namespaces, events, who holds a lease, what is limited."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from federator.cli.age import age
from federator.cli.printers.printer import (
    Cell,
    Manifest,
    Printer,
    age_of,
    columns,
    count_at,
    dig,
    entries_at,
    mapping_at,
    name_of,
    text_at,
)

_ROLE_PREFIX = "node-role.kubernetes.io/"
_ROLE_LABEL = "kubernetes.io/role"


def _node_status(node: Manifest) -> str:
    ready = next((c.get("status") for c in entries_at(node, "status", "conditions") if c.get("type") == "Ready"), None)
    status = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return f"{status},SchedulingDisabled" if dig(node, "spec", "unschedulable") is True else status


def _node_roles(node: Manifest) -> str:
    labels = mapping_at(node, "metadata", "labels")
    roles = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    roles.add(str(labels.get(_ROLE_LABEL, "")))
    return ",".join(sorted(roles - {""})) or "<none>"


def _node_address(node: Manifest, kind: str) -> str:
    addresses = entries_at(node, "status", "addresses")
    return next((text_at(a, "address") for a in addresses if a.get("type") == kind), "<none>")


def _node(node: Manifest, now: datetime) -> Sequence[Cell]:
    info = mapping_at(node, "status", "nodeInfo")
    kernel = text_at(info, "kernelVersion") or "<unknown>"
    architecture = text_at(info, "architecture")
    return (
        name_of(node),
        _node_status(node),
        _node_roles(node),
        age_of(node, now),
        text_at(info, "kubeletVersion"),
        _node_address(node, "InternalIP"),
        _node_address(node, "ExternalIP"),
        text_at(info, "osImage") or "<unknown>",
        f"{kernel} ({architecture})" if architecture else kernel,
        text_at(info, "containerRuntimeVersion") or "<unknown>",
    )


def _namespace(namespace: Manifest, now: datetime) -> Sequence[Cell]:
    return (name_of(namespace), text_at(namespace, "status", "phase"), age_of(namespace, now))


def _event(event: Manifest, now: datetime) -> Sequence[Cell]:
    """An event of the core group, or of events.k8s.io, which has other names for the same fields."""
    first = dig(event, "firstTimestamp") or dig(event, "deprecatedFirstTimestamp") or dig(event, "eventTime")
    last = dig(event, "lastTimestamp") or dig(event, "deprecatedLastTimestamp") or first
    count = count_at(event, "count") or count_at(event, "deprecatedCount") or 1
    if dig(event, "series") is not None:
        last = dig(event, "series", "lastObservedTime")
        count = count_at(event, "series", "count")
    about = mapping_at(event, "involvedObject") or mapping_at(event, "regarding")
    kind, name = text_at(about, "kind").lower(), text_at(about, "name")
    source = mapping_at(event, "source") or mapping_at(event, "deprecatedSource")
    component = (
        text_at(source, "component") or text_at(event, "reportingComponent") or text_at(event, "reportingController")
    )
    host = text_at(source, "host") or text_at(event, "reportingInstance")
    return (
        age(last, now),
        text_at(event, "type"),
        text_at(event, "reason"),
        f"{kind}/{name}" if name else kind,
        text_at(about, "fieldPath"),
        f"{component}, {host}" if host else component,
        (text_at(event, "message") or text_at(event, "note")).strip(),
        age(first, now),
        count,
        name_of(event),
    )


def _lease(lease: Manifest, now: datetime) -> Sequence[Cell]:
    return (name_of(lease), text_at(lease, "spec", "holderIdentity"), age_of(lease, now))


def _priority_class(priority_class: Manifest, now: datetime) -> Sequence[Cell]:
    return (
        name_of(priority_class),
        count_at(priority_class, "value"),
        priority_class.get("globalDefault") is True,
        age_of(priority_class, now),
        text_at(priority_class, "preemptionPolicy"),
    )


def _runtime_class(runtime_class: Manifest, now: datetime) -> Sequence[Cell]:
    return (name_of(runtime_class), text_at(runtime_class, "handler"), age_of(runtime_class, now))


def _resource_quota(quota: Manifest, now: datetime) -> Sequence[Cell]:
    used, hard = mapping_at(quota, "status", "used"), mapping_at(quota, "status", "hard")
    shown = {resource: f"{resource}: {used.get(resource, '0')}/{hard[resource]}" for resource in sorted(hard)}
    return (
        name_of(quota),
        ", ".join(text for resource, text in shown.items() if not resource.startswith("limits.")),
        ", ".join(text for resource, text in shown.items() if resource.startswith("limits.")),
        age_of(quota, now),
    )


def _webhook_configuration(configuration: Manifest, now: datetime) -> Sequence[Cell]:
    return (name_of(configuration), len(entries_at(configuration, "webhooks")), age_of(configuration, now))


def _api_service(api_service: Manifest, now: datetime) -> Sequence[Cell]:
    service = dig(api_service, "spec", "service")
    conditions = entries_at(api_service, "status", "conditions")
    available = next((c for c in conditions if c.get("type") == "Available"), {})
    status, reason = text_at(available, "status") or "Unknown", text_at(available, "reason")
    return (
        name_of(api_service),
        "Local" if service is None else f"{text_at(service, 'namespace')}/{text_at(service, 'name')}",
        f"{status} ({reason})" if reason and status != "True" else status,
        age_of(api_service, now),
    )


def _custom_resource_definition(definition: Manifest, now: datetime) -> Sequence[Cell]:
    del now
    served = [version for version in entries_at(definition, "spec", "versions") if version.get("served") is True]
    labels = [text_at(version, "name") + "(storage)" * (version.get("storage") is True) for version in served]
    conditions = entries_at(definition, "status", "conditions")
    return (
        name_of(definition),
        text_at(definition, "spec", "scope"),
        ",".join(sorted(labels)),
        text_at(definition, "metadata", "creationTimestamp"),
        text_at(definition, "spec", "group"),
        text_at(definition, "spec", "names", "kind"),
        ",".join(map(str, dig(definition, "spec", "names", "shortNames") or ())),
        any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions),
    )


NODES = Printer(
    columns("NAME,STATUS,ROLES,AGE,VERSION,INTERNAL-IP*,EXTERNAL-IP*,OS-IMAGE*,KERNEL-VERSION*,CONTAINER-RUNTIME*"),
    _node,
)
NAMESPACES = Printer(columns("NAME,STATUS,AGE"), _namespace)
EVENTS = Printer(columns("LAST SEEN,TYPE,REASON,OBJECT,SUBOBJECT*,SOURCE*,MESSAGE,FIRST SEEN*,COUNT*,NAME*"), _event)
LEASES = Printer(columns("NAME,HOLDER,AGE"), _lease)
PRIORITY_CLASSES = Printer(columns("NAME,VALUE,GLOBAL-DEFAULT,AGE,PREEMPTIONPOLICY"), _priority_class)
RUNTIME_CLASSES = Printer(columns("NAME,HANDLER,AGE"), _runtime_class)
RESOURCE_QUOTAS = Printer(columns("NAME,REQUEST,LIMIT,AGE"), _resource_quota)
WEBHOOK_CONFIGURATIONS = Printer(columns("NAME,WEBHOOKS,AGE"), _webhook_configuration)
API_SERVICES = Printer(columns("NAME,SERVICE,AVAILABLE,AGE"), _api_service)
CUSTOM_RESOURCE_DEFINITIONS = Printer(
    columns("NAME,SCOPE,VERSIONS,CREATED AT,GROUP*,KIND*,SHORTNAMES*,ESTABLISHED*"), _custom_resource_definition
)
