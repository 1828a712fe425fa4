"""Patches in a line."""

from __future__ import annotations

from typing import Any

import pytest

from federator.cli.output.patch import lines, summary

BEFORE: dict[str, Any] = {
    "metadata": {"labels": {"app": "web"}, "annotations": {"a.b/c": "1"}},
    "spec": {
        "replicas": 3,
        "template": {
            "spec": {"containers": [{"name": "web", "image": "nginx:1", "env": [{"name": "A", "value": "x"}]}]}
        },
    },
    "status": {"conditions": [{"type": "Ready"}]},
}


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "replace", "path": "/spec/replicas", "value": 2}, ".spec.replicas 3 → 2"),
        ({"op": "add", "path": "/metadata/labels/tier", "value": "a"}, "+.metadata.labels.tier a"),
        ({"op": "remove", "path": "/metadata/labels/app"}, "-.metadata.labels.app"),
        ({"op": "add", "path": "/spec/x", "value": {"a": 1}}, "+.spec.x {…}"),
        ({"op": "add", "path": "/spec/x", "value": []}, "+.spec.x []"),
        ({"op": "add", "path": "/spec/x", "value": ""}, '+.spec.x ""'),
        ({"op": "add", "path": "/spec/x", "value": None}, "+.spec.x null"),
        ({"op": "add", "path": "/spec/x", "value": "a\nb " * 30}, "+.spec.x " + "a b " * 7 + "a b…"),
        (
            {"op": "replace", "path": "/metadata/annotations/a.b~1c", "value": "2"},
            '.metadata.annotations["a.b/c"] 1 → 2',
        ),
        (
            {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "nginx:2"},
            ".spec.template.spec.containers[web].image nginx:1 → nginx:2",
        ),
        (
            {"op": "replace", "path": "/spec/template/spec/containers/0/env/0/value", "value": "y"},
            ".spec.template.spec.containers[web].env[A].value x → y",
        ),
        (
            {"op": "add", "path": "/spec/template/spec/containers/0/livenessProbe/port", "value": 80},
            "+.spec…livenessProbe.port 80",
        ),
        ({"op": "replace", "path": "/status/conditions/0/type", "value": "X"}, ".status.conditions[0].type Ready → X"),
        ({"op": "add", "path": "/status/conditions/1", "value": {}}, "+.status.conditions[1] {}"),
        ({"op": "add", "path": "/status/conditions/-", "value": 1}, "+.status.conditions[-] 1"),
        ({"op": "move", "from": "/spec/replicas", "path": "/spec/x"}, ".spec.x ← .spec.replicas"),
        ({"op": "replace", "path": "", "value": {}}, ". {…} → {}"),
    ],
)
def test_an_operation(operation: dict[str, Any], expected: str) -> None:
    assert summary([operation], BEFORE) == expected


def test_where_the_state_before_is_not_known() -> None:
    assert summary([{"op": "replace", "path": "/spec/a/0/b", "value": 2}]) == ".spec.a.0.b → 2"


def test_noise_is_left_out_and_the_rest_counted() -> None:
    noise = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "2"},
        {"op": "add", "path": "/metadata/managedFields/0/time", "value": "x"},
    ]
    assert summary(noise) == ""
    many = [{"op": "remove", "path": f"/{letter}"} for letter in "abcde"]
    assert summary([*noise, *many]) == "-.a, -.b, -.c and 2 more"


def test_lines_are_json() -> None:
    assert lines([{"op": "remove", "path": "/é"}]) == ['{"op":"remove","path":"/é"}']
