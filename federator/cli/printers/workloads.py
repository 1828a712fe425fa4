"""What runs pods: deployments, sets, jobs, and what scales and protects them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from federator.cli.age import age, human_duration, parse_timestamp
from federator.cli.printers.labels import format_label_selector, format_labels
from federator.cli.printers.pods import container_cells
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


def _template_cells(workload: Manifest) -> tuple[str, str]:
    return container_cells(dig(workload, "spec", "template", "spec"))


def _deployment(deployment: Manifest, now: datetime) -> Sequence[Cell]:
    return (
        name_of(deployment),
        f"{count_at(deployment, 'status', 'readyReplicas')}/{count_at(deployment, 'spec', 'replicas')}",
        count_at(deployment, "status", "updatedReplicas"),
        count_at(deployment, "status", "availableReplicas"),
        age_of(deployment, now),
        *_template_cells(deployment),
        format_label_selector(dig(deployment, "spec", "selector"), empty=""),
    )


def _replica_set(replica_set: Manifest, now: datetime) -> Sequence[Cell]:
    return (
        *_replica_counts(replica_set, now),
        format_label_selector(dig(replica_set, "spec", "selector")),
    )


def _replication_controller(controller: Manifest, now: datetime) -> Sequence[Cell]:
    return (*_replica_counts(controller, now), format_labels(mapping_at(controller, "spec", "selector")))


def _replica_counts(workload: Manifest, now: datetime) -> tuple[Cell, ...]:
    return (
        name_of(workload),
        count_at(workload, "spec", "replicas"),
        count_at(workload, "status", "replicas"),
        count_at(workload, "status", "readyReplicas"),
        age_of(workload, now),
        *_template_cells(workload),
    )


def _stateful_set(stateful_set: Manifest, now: datetime) -> Sequence[Cell]:
    return (
        name_of(stateful_set),
        f"{count_at(stateful_set, 'status', 'readyReplicas')}/{count_at(stateful_set, 'spec', 'replicas')}",
        age_of(stateful_set, now),
        *_template_cells(stateful_set),
    )


def _daemon_set(daemon_set: Manifest, now: datetime) -> Sequence[Cell]:
    return (
        name_of(daemon_set),
        count_at(daemon_set, "status", "desiredNumberScheduled"),
        count_at(daemon_set, "status", "currentNumberScheduled"),
        count_at(daemon_set, "status", "numberReady"),
        count_at(daemon_set, "status", "updatedNumberScheduled"),
        count_at(daemon_set, "status", "numberAvailable"),
        format_labels(mapping_at(daemon_set, "spec", "template", "spec", "nodeSelector")),
        age_of(daemon_set, now),
        *_template_cells(daemon_set),
        format_label_selector(dig(daemon_set, "spec", "selector")),
    )


def _controller_revision(revision: Manifest, now: datetime) -> Sequence[Cell]:
    owner = next((o for o in entries_at(revision, "metadata", "ownerReferences") if o.get("controller") is True), None)
    controller = "<none>"
    if owner is not None:
        group = text_at(owner, "apiVersion").rpartition("/")[0]
        kind = f"{text_at(owner, 'kind')}.{group}" if group else text_at(owner, "kind")
        controller = f"{kind.lower()}/{text_at(owner, 'name')}"
    return (name_of(revision), controller, count_at(revision, "revision"), age_of(revision, now))


_JOB_STATUSES = (
    ("Complete", "Complete"),
    ("Failed", "Failed"),
    (None, "Terminating"),
    ("Suspended", "Suspended"),
    ("FailureTarget", "FailureTarget"),
    ("SuccessCriteriaMet", "SuccessCriteriaMet"),
)
"""Condition and the status it gives, the first that holds; None stands for a deletion under way."""


def _job_status(job: Manifest) -> str:
    holding = {
        condition.get("type")
        for condition in entries_at(job, "status", "conditions")
        if condition.get("status") == "True"
    }
    if dig(job, "metadata", "deletionTimestamp") is not None:
        holding.add(None)
    return next((status for condition, status in _JOB_STATUSES if condition in holding), "Running")


def _job_completions(job: Manifest) -> str:
    succeeded = count_at(job, "status", "succeeded")
    if dig(job, "spec", "completions") is not None:
        return f"{succeeded}/{count_at(job, 'spec', 'completions')}"
    parallelism = count_at(job, "spec", "parallelism")
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(job: Manifest, now: datetime) -> str:
    started = parse_timestamp(dig(job, "status", "startTime"))
    if started is None:
        return ""
    ended = parse_timestamp(dig(job, "status", "completionTime")) or now
    return human_duration((ended - started).total_seconds())


def _job(job: Manifest, now: datetime) -> Sequence[Cell]:
    return (
        name_of(job),
        _job_status(job),
        _job_completions(job),
        _job_duration(job, now),
        age_of(job, now),
        *_template_cells(job),
        format_label_selector(dig(job, "spec", "selector")),
    )


def _cron_job(cron_job: Manifest, now: datetime) -> Sequence[Cell]:
    last = dig(cron_job, "status", "lastScheduleTime")
    suspend = dig(cron_job, "spec", "suspend")
    job_spec = dig(cron_job, "spec", "jobTemplate", "spec")
    return (
        name_of(cron_job),
        text_at(cron_job, "spec", "schedule"),
        text_at(cron_job, "spec", "timeZone") or "<none>",
        "<unset>" if suspend is None else str(bool(suspend)),
        len(entries_at(cron_job, "status", "active")),
        "<none>" if last is None else age(last, now),
        age_of(cron_job, now),
        *container_cells(dig(job_spec, "template", "spec")),
        format_label_selector(dig(job_spec, "selector")),
    )


def _pod_template(template: Manifest, now: datetime) -> Sequence[Cell]:
    del now
    return (
        name_of(template),
        *container_cells(dig(template, "template", "spec")),
        format_labels(mapping_at(template, "template", "metadata", "labels")),
    )


def _pod_disruption_budget(budget: Manifest, now: datetime) -> Sequence[Cell]:
    least = dig(budget, "spec", "minAvailable")
    most = dig(budget, "spec", "maxUnavailable")
    return (
        name_of(budget),
        "N/A" if least is None else least,
        "N/A" if most is None else most,
        count_at(budget, "status", "disruptionsAllowed"),
        age_of(budget, now),
    )


_METRIC_FIELDS = {
    "External": "external",
    "Pods": "pods",
    "Object": "object",
    "Resource": "resource",
    "ContainerResource": "containerResource",
}
_SHOWN_METRICS = 2


def _metric(spec: Manifest, status: Manifest) -> str:
    """One metric of an autoscaler: `current/target`, and what they are of."""
    kind = text_at(spec, "type")
    field = _METRIC_FIELDS.get(kind)
    if field is None:
        return "<unknown type>"
    wanted = mapping_at(spec, field, "target")
    current = mapping_at(status, field, "current")

    def of(key: str) -> str:
        now = current.get(key)
        return f"{'<unknown>' if now is None else now}/{wanted.get(key)}"

    if kind in {"Resource", "ContainerResource"}:
        resource = text_at(spec, field, "name")
        if "averageValue" in wanted:
            return f"{resource}: {of('averageValue')}"
        used, goal = current.get("averageUtilization"), wanted.get("averageUtilization")
        shown_goal = "<auto>" if goal is None else f"{goal}%"
        return f"{resource}: {'<unknown>' if used is None else f'{used}%'}/{shown_goal}"
    if kind == "Pods":
        return of("averageValue")
    return f"{of('averageValue')} (avg)" if "averageValue" in wanted else of("value")


def _autoscaler_targets(autoscaler: Manifest) -> str:
    specs = entries_at(autoscaler, "spec", "metrics")
    statuses = entries_at(autoscaler, "status", "currentMetrics")
    if not specs:
        return "<none>"
    shown = [
        _metric(spec, statuses[index] if index < len(statuses) else {})
        for index, spec in enumerate(specs[:_SHOWN_METRICS])
    ]
    listed = ", ".join(shown)
    return f"{listed} + {len(specs) - len(shown)} more..." if len(specs) > len(shown) else listed


def _horizontal_pod_autoscaler(autoscaler: Manifest, now: datetime) -> Sequence[Cell]:
    target = dig(autoscaler, "spec", "scaleTargetRef")
    least = dig(autoscaler, "spec", "minReplicas")
    return (
        name_of(autoscaler),
        f"{text_at(target, 'kind')}/{text_at(target, 'name')}",
        _autoscaler_targets(autoscaler),
        "<unset>" if least is None else least,
        count_at(autoscaler, "spec", "maxReplicas"),
        count_at(autoscaler, "status", "currentReplicas"),
        age_of(autoscaler, now),
    )


DEPLOYMENTS = Printer(columns("NAME,READY,UP-TO-DATE,AVAILABLE,AGE,CONTAINERS*,IMAGES*,SELECTOR*"), _deployment)
REPLICA_SETS = Printer(columns("NAME,DESIRED,CURRENT,READY,AGE,CONTAINERS*,IMAGES*,SELECTOR*"), _replica_set)
REPLICATION_CONTROLLERS = Printer(REPLICA_SETS.columns, _replication_controller)
STATEFUL_SETS = Printer(columns("NAME,READY,AGE,CONTAINERS*,IMAGES*"), _stateful_set)
DAEMON_SETS = Printer(
    columns("NAME,DESIRED,CURRENT,READY,UP-TO-DATE,AVAILABLE,NODE SELECTOR,AGE,CONTAINERS*,IMAGES*,SELECTOR*"),
    _daemon_set,
)
CONTROLLER_REVISIONS = Printer(columns("NAME,CONTROLLER,REVISION,AGE"), _controller_revision)
JOBS = Printer(columns("NAME,STATUS,COMPLETIONS,DURATION,AGE,CONTAINERS*,IMAGES*,SELECTOR*"), _job)
CRON_JOBS = Printer(
    columns("NAME,SCHEDULE,TIMEZONE,SUSPEND,ACTIVE,LAST SCHEDULE,AGE,CONTAINERS*,IMAGES*,SELECTOR*"), _cron_job
)
POD_TEMPLATES = Printer(columns("NAME,CONTAINERS,IMAGES,POD LABELS"), _pod_template)
POD_DISRUPTION_BUDGETS = Printer(
    columns("NAME,MIN AVAILABLE,MAX UNAVAILABLE,ALLOWED DISRUPTIONS,AGE"), _pod_disruption_budget
)
HORIZONTAL_POD_AUTOSCALERS = Printer(
    columns("NAME,REFERENCE,TARGETS,MINPODS,MAXPODS,REPLICAS,AGE"), _horizontal_pod_autoscaler
)
