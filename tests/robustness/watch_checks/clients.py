"""Twenty clients: what each asks for, once in the product's words and once in Python, and how it behaves."""

from __future__ import annotations

from fnmatch import fnmatchcase

from tests.robustness.watch_checks.asked import Asked, asked
from tests.robustness.watch_checks.recorder import Beginning, Manner

PLACE = "watched"
"""Namespace of the objects that enter and leave selections."""

_DEPLOYMENTS = "deployments.apps"
_WIDGETS = "widgets.testing.federator.io"
_ALL = ("pods", "configmaps", _DEPLOYMENTS, _WIDGETS, "clusterroles.rbac.authorization.k8s.io")
_LISTED = Beginning.LISTED

CLIENTS: tuple[tuple[Asked, Manner], ...] = (
    (asked("one type", "pods", types=["pods"]), Manner()),
    (
        asked("several types", "configmaps,deployments.apps,pods", types=["configmaps", _DEPLOYMENTS, "pods"]),
        Manner(bookmarks=1, previous=True),
    ),
    (asked("a custom type, cut", _WIDGETS, types=[_WIDGETS]), Manner(cut_after=2)),
    (
        asked(
            "namespace", "pods,cm", types=["pods", "configmaps"], namespace=PLACE, states=lambda o: o.namespace == PLACE
        ),
        Manner(begins=_LISTED),
    ),
    (
        asked(
            "namespace, with a type that has none",
            "clusterroles,configmaps",
            types=["clusterroles.rbac.authorization.k8s.io", "configmaps"],
            namespace="load-0",
            states=lambda o: o.namespace in {"", "load-0"},
        ),
        Manner(late=3),
    ),
    (
        asked("name", "pods", types=["pods"], object_name="web-1", states=lambda o: o.name == "web-1"),
        Manner(bookmarks=1),
    ),
    (
        asked(
            "label equals",
            "pods,configmaps",
            types=["pods", "configmaps"],
            labels="track=stable",
            states=lambda o: o.labels.get("track") == "stable",
        ),
        Manner(cut_after=1.5, previous=True),
    ),
    (
        asked(
            "label differs",
            ",".join(_ALL),
            types=_ALL,
            labels="track!=stable",
            states=lambda o: o.labels.get("track") != "stable",
        ),
        Manner(begins=_LISTED, late=2),
    ),
    (
        asked(
            "label in a set",
            "pods",
            types=["pods"],
            labels="track in (canary, beta)",
            states=lambda o: o.labels.get("track") in {"canary", "beta"},
        ),
        Manner(cut_after=2, tears=True, previous=True),
    ),
    (
        asked(
            "label not in a set, and another",
            "pods,cm",
            types=["pods", "configmaps"],
            labels="track notin (canary),tier",
            states=lambda o: o.labels.get("track") != "canary" and "tier" in o.labels,
        ),
        Manner(bookmarks=1),
    ),
    (
        asked("label exists", "pods", types=["pods"], labels="spare", states=lambda o: "spare" in o.labels),
        Manner(begins=_LISTED, late=5, bookmarks=1),
    ),
    (
        asked(
            "label does not exist",
            "pods",
            types=["pods"],
            labels="!spare,track",
            states=lambda o: "spare" not in o.labels and "track" in o.labels,
        ),
        Manner(cut_after=3, away=2, previous=True),
    ),
    (
        asked(
            "indexed field",
            "pods",
            types=["pods"],
            fields="spec.nodeName=node-1",
            states=lambda o: o.field("spec.nodeName") == "node-1",
        ),
        Manner(),
    ),
    (
        asked(
            "indexed fields",
            "pods",
            types=["pods"],
            fields="spec.nodeName!=node-1,metadata.name!=web-2",
            states=lambda o: o.field("spec.nodeName") != "node-1" and o.name != "web-2",
        ),
        Manner(cut_after=1),
    ),
    (
        asked(
            "field that is not indexed",
            "pods",
            types=["pods"],
            fields="status.phase=Running",
            states=lambda o: o.field("status.phase") == "Running",
        ),
        Manner(bookmarks=1, previous=True),
    ),
    (
        asked(
            "fields and labels",
            "pods",
            types=["pods"],
            labels="track in (stable,canary)",
            fields="status.phase!=Pending,metadata.namespace=watched",
            states=lambda o: (
                o.labels.get("track") in {"stable", "canary"}
                and o.field("status.phase") != "Pending"
                and o.namespace == "watched"
            ),
        ),
        Manner(begins=_LISTED, cut_after=2, tears=True),
    ),
    (
        asked(
            "clusters by a glob",
            ",".join(_ALL),
            types=_ALL,
            clusters=("?s-*,eu-1", lambda c: fnmatchcase(c, "?s-*") or c == "eu-1"),
        ),
        Manner(cut_after=2, tears=True, bookmarks=1),
    ),
    (
        asked(
            "all clusters but one",
            "pods,deploy",
            types=["pods", _DEPLOYMENTS],
            clusters=("!eu-*", lambda c: c != "eu-1"),
        ),
        Manner(cut_after=2.5),
    ),
    (asked("slow", "pods,configmaps", types=["pods", "configmaps"]), Manner(pace=1.0, bookmarks=1)),
    (
        asked(
            "long away",
            "pods,configmaps",
            types=["pods", "configmaps"],
            labels="track",
            states=lambda o: "track" in o.labels,
        ),
        Manner(cut_after=2, away=14, previous=True),
    ),
)
"""All of them."""
