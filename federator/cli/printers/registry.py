"""Which type is printed by which printer."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from federator.api.resource import GroupResource
from federator.cli.printers import cluster, configuration, network, pods, storage, workloads
from federator.cli.printers.default import NAME_AND_AGE, NAME_AND_CREATION
from federator.cli.printers.printer import Manifest, Printer

BUILT_IN: dict[str, dict[str, Printer]] = {
    "": {
        "configmaps": configuration.CONFIG_MAPS,
        "endpoints": network.ENDPOINTS,
        "events": cluster.EVENTS,
        "limitranges": NAME_AND_CREATION,
        "namespaces": cluster.NAMESPACES,
        "nodes": cluster.NODES,
        "persistentvolumeclaims": storage.PERSISTENT_VOLUME_CLAIMS,
        "persistentvolumes": storage.PERSISTENT_VOLUMES,
        "pods": pods.PODS,
        "podtemplates": workloads.POD_TEMPLATES,
        "replicationcontrollers": workloads.REPLICATION_CONTROLLERS,
        "resourcequotas": cluster.RESOURCE_QUOTAS,
        "secrets": configuration.SECRETS,
        "serviceaccounts": NAME_AND_AGE,
        "services": network.SERVICES,
    },
    "admissionregistration.k8s.io": {
        "mutatingwebhookconfigurations": cluster.WEBHOOK_CONFIGURATIONS,
        "validatingwebhookconfigurations": cluster.WEBHOOK_CONFIGURATIONS,
    },
    "apiextensions.k8s.io": {"customresourcedefinitions": cluster.CUSTOM_RESOURCE_DEFINITIONS},
    "apiregistration.k8s.io": {"apiservices": cluster.API_SERVICES},
    "apps": {
        "controllerrevisions": workloads.CONTROLLER_REVISIONS,
        "daemonsets": workloads.DAEMON_SETS,
        "deployments": workloads.DEPLOYMENTS,
        "replicasets": workloads.REPLICA_SETS,
        "statefulsets": workloads.STATEFUL_SETS,
    },
    "autoscaling": {"horizontalpodautoscalers": workloads.HORIZONTAL_POD_AUTOSCALERS},
    "batch": {"cronjobs": workloads.CRON_JOBS, "jobs": workloads.JOBS},
    "coordination.k8s.io": {"leases": cluster.LEASES},
    "discovery.k8s.io": {"endpointslices": network.ENDPOINT_SLICES},
    "events.k8s.io": {"events": cluster.EVENTS},
    "networking.k8s.io": {
        "ingressclasses": network.INGRESS_CLASSES,
        "ingresses": network.INGRESSES,
        "networkpolicies": network.NETWORK_POLICIES,
    },
    "node.k8s.io": {"runtimeclasses": cluster.RUNTIME_CLASSES},
    "policy": {"poddisruptionbudgets": workloads.POD_DISRUPTION_BUDGETS},
    "rbac.authorization.k8s.io": {
        "clusterrolebindings": configuration.BINDINGS,
        "clusterroles": NAME_AND_CREATION,
        "rolebindings": configuration.BINDINGS,
        "roles": NAME_AND_CREATION,
    },
    "scheduling.k8s.io": {"priorityclasses": cluster.PRIORITY_CLASSES},
    "storage.k8s.io": {
        "csidrivers": storage.CSI_DRIVERS,
        "csinodes": storage.CSI_NODES,
        "csistoragecapacities": NAME_AND_CREATION,
        "storageclasses": storage.STORAGE_CLASSES,
        "volumeattachments": storage.VOLUME_ATTACHMENTS,
        "volumeattributesclasses": storage.VOLUME_ATTRIBUTES_CLASSES,
    },
}
"""Group, plural name and printer of the built-in types that have one."""


def built_in_printer(group_resource: GroupResource) -> Printer | None:
    """The printer of a built-in type; None where there is none, as of every custom resource."""
    return BUILT_IN.get(group_resource.group, {}).get(group_resource.resource)


def printer_for(
    group_resource: GroupResource, definitions: Iterable[Manifest] = (), versions: Collection[str] = ()
) -> Printer:
    """The printer of a type.

    Args:
        group_resource: the type.
        definitions: for a custom resource, its CustomResourceDefinitions, one of each cluster that has it.
        versions: for a custom resource, the versions of the objects to print.

    Returns:
        A printer; of types that nothing is known about, one of NAME and AGE.
    """
    if printer := built_in_printer(group_resource):
        return printer
    known = tuple(definitions)
    if not known:
        return NAME_AND_AGE
    # Imported here, since few commands need it and it takes as long as the rest together.
    from federator.cli.printers.custom import custom_printer

    return custom_printer(known, versions)
