"""Services, what stands behind them, and who may reach what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from federator.cli.printers.labels import format_label_selector, format_labels
from federator.cli.printers.printer import (
    Cell,
    Manifest,
    Printer,
    age_of,
    columns,
    count_at,
    dig,
    entries_at,
    first_with_more,
    mapping_at,
    name_of,
    text_at,
)

_SHOWN = 3


def _load_balancer(manifest: Manifest) -> str:
    ingresses = entries_at(manifest, "status", "loadBalancer", "ingress")
    addresses = {text_at(ingress, "ip") or text_at(ingress, "hostname") for ingress in ingresses} - {""}
    return ",".join(sorted(addresses))


def _external_ip(service: Manifest) -> str:
    given = [str(address) for address in dig(service, "spec", "externalIPs") or ()]
    match text_at(service, "spec", "type"):
        case "ClusterIP" | "NodePort":
            return ",".join(given) or "<none>"
        case "LoadBalancer":
            balancer = _load_balancer(service)
            return ",".join([*filter(None, [balancer]), *given]) or "<pending>"
        case "ExternalName":
            return text_at(service, "spec", "externalName")
        case _:
            return "<unknown>"


def _service_port(port: Manifest) -> str:
    node_port = count_at(port, "nodePort")
    shown = f"{count_at(port, 'port')}:{node_port}" if node_port > 0 else f"{count_at(port, 'port')}"
    return f"{shown}/{text_at(port, 'protocol')}"


def _service(service: Manifest, now: datetime) -> Sequence[Cell]:
    cluster_ips = dig(service, "spec", "clusterIPs") or ["<none>"]
    return (
        name_of(service),
        text_at(service, "spec", "type"),
        cluster_ips[0],
        _external_ip(service),
        ",".join(map(_service_port, entries_at(service, "spec", "ports"))) or "<none>",
        age_of(service, now),
        format_labels(mapping_at(service, "spec", "selector")),
    )


def _host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _endpoint_addresses(endpoints: Manifest) -> Iterable[str]:
    for subset in entries_at(endpoints, "subsets"):
        addresses = [text_at(address, "ip") for address in entries_at(subset, "addresses")]
        ports = entries_at(subset, "ports")
        if not ports:
            yield from addresses
        for port in ports:
            yield from (_host_port(address, count_at(port, "port")) for address in addresses)


def _endpoints(endpoints: Manifest, now: datetime) -> Sequence[Cell]:
    addresses = list(_endpoint_addresses(endpoints))
    shown = first_with_more(addresses[:_SHOWN], len(addresses) - _SHOWN)
    return (name_of(endpoints), shown if entries_at(endpoints, "subsets") else "<none>", age_of(endpoints, now))


def _slice_port(port: Manifest) -> str:
    number, name = port.get("port"), port.get("name")
    if number is not None:
        return str(number)
    return "*" if name is None else str(name)


def _endpoint_slice(endpoint_slice: Manifest, now: datetime) -> Sequence[Cell]:
    ports = [_slice_port(port) for port in entries_at(endpoint_slice, "ports")]
    addresses = [
        str(address)
        for endpoint in entries_at(endpoint_slice, "endpoints")
        for address in endpoint.get("addresses") or ()
    ]
    return (
        name_of(endpoint_slice),
        text_at(endpoint_slice, "addressType"),
        first_with_more(ports[:_SHOWN], len(ports) - _SHOWN) or "<unset>",
        first_with_more(addresses[:_SHOWN], len(addresses) - _SHOWN) or "<unset>",
        age_of(endpoint_slice, now),
    )


def _ingress_hosts(ingress: Manifest) -> str:
    rules = entries_at(ingress, "spec", "rules")
    shown: list[str] = []
    for rule in rules:
        if len(shown) == _SHOWN:
            # What is hidden is counted in rules, though not every rule has a host.
            return first_with_more(shown, len(rules) - _SHOWN)
        if host := text_at(rule, "host"):
            shown.append(host)
    return ",".join(shown) or "*"


def _ingress(ingress: Manifest, now: datetime) -> Sequence[Cell]:
    return (
        name_of(ingress),
        text_at(ingress, "spec", "ingressClassName") or "<none>",
        _ingress_hosts(ingress),
        _load_balancer(ingress),
        "80, 443" if dig(ingress, "spec", "tls") else "80",
        age_of(ingress, now),
    )


def _ingress_class(ingress_class: Manifest, now: datetime) -> Sequence[Cell]:
    name = name_of(ingress_class)
    default = mapping_at(ingress_class, "metadata", "annotations").get("ingressclass.kubernetes.io/is-default-class")
    parameters = mapping_at(ingress_class, "spec", "parameters")
    group = text_at(parameters, "apiGroup")
    kind = f"{text_at(parameters, 'kind')}.{group}" if group else text_at(parameters, "kind")
    return (
        f"{name} (default)" if default == "true" else name,
        text_at(ingress_class, "spec", "controller"),
        f"{kind}/{text_at(parameters, 'name')}" if parameters else "<none>",
        age_of(ingress_class, now),
    )


def _network_policy(policy: Manifest, now: datetime) -> Sequence[Cell]:
    return (name_of(policy), format_label_selector(mapping_at(policy, "spec", "podSelector")), age_of(policy, now))


SERVICES = Printer(columns("NAME,TYPE,CLUSTER-IP,EXTERNAL-IP,PORT(S),AGE,SELECTOR*"), _service)
ENDPOINTS = Printer(columns("NAME,ENDPOINTS,AGE"), _endpoints)
ENDPOINT_SLICES = Printer(columns("NAME,ADDRESSTYPE,PORTS,ENDPOINTS,AGE"), _endpoint_slice)
INGRESSES = Printer(columns("NAME,CLASS,HOSTS,ADDRESS,PORTS,AGE"), _ingress)
INGRESS_CLASSES = Printer(columns("NAME,CONTROLLER,PARAMETERS,AGE"), _ingress_class)
NETWORK_POLICIES = Printer(columns("NAME,POD-SELECTOR,AGE"), _network_policy)
