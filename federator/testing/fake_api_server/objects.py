"""Creating, replacing, patching and deleting objects with the apiserver's rules."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Mapping
from typing import Any

from federator.testing.fake_api_server.history import History, Version
from federator.testing.fake_api_server.served_type import ServedType, ServedTypes
from federator.testing.fake_api_server.status import (
    ApiError,
    Json,
    bad_request,
    conflict,
    internal,
    invalid,
    not_found,
    status,
)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
_METADATA_ORDER = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
)
_SET_BY_SERVER = ("uid", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion")


class Objects:
    """Writes objects into a history. Every method is one step: nothing else happens in between.

    Objects are taken and returned without apiVersion and kind.
    """

    def __init__(self, history: History, types: ServedTypes) -> None:
        self._history = history
        self._types = types

    def get(self, served: ServedType, name: str, namespace: str) -> Json:
        """The newest state.

        Raises:
            ApiError: 404.
        """
        return self._version(served, name, namespace).obj

    def create(self, served: ServedType, namespace: str, obj: Json, *, strict: bool = True) -> Json:
        """Creates an object.

        Args:
            served: its type.
            namespace: where to; "" for cluster-scoped types.
            obj: the object; `metadata.generateName` may take the place of the name.
            strict: it is an error if the namespace does not exist.

        Raises:
            ApiError: 404 for the namespace, 409 where it exists, 422 for its name, 400 or 500 for other metadata.
        """
        metadata = dict(obj.get("metadata") or {})
        if metadata.get("resourceVersion"):
            raise internal("resourceVersion should not be set on objects to be created")
        name = self._name(served, metadata)
        self._check_namespace(served, namespace, metadata, strict=strict)
        key = served.key(name, namespace)
        if self._history.current(served.group_resource, key) is not None:
            details = self._details(served, name)
            message = f'{served.qualified} "{name}" already exists'
            raise ApiError(409, status(409, reason="AlreadyExists", message=message, details=details))
        metadata |= {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        metadata.pop("deletionTimestamp", None)
        if served.type.namespaced:
            metadata["namespace"] = namespace
        if served.generation:
            metadata["generation"] = 1
        return self._write(served, key, _with_defaults(served, {**obj, "metadata": metadata}))

    def replace(self, served: ServedType, name: str, namespace: str, obj: Json, *, strict: bool = True) -> Json:
        """Replaces an object; what changes nothing writes nothing.

        Args:
            served: its type.
            name: its name.
            namespace: its namespace.
            obj: the new state; a resourceVersion or UID in it must be the present one.
            strict: a custom resource needs the resourceVersion.

        Raises:
            ApiError: 404, 409, 422, or 400 where the name is another.
        """
        metadata = dict(obj.get("metadata") or {})
        if (given := metadata.get("name", "")) != name:
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
        self._check_namespace(served, namespace, metadata, strict=False)
        before = self._version(served, name, namespace).obj
        details = self._details(served, name)
        expected = metadata.get("resourceVersion")
        if not expected and served.custom and strict:
            cause = ("FieldValueInvalid", "Invalid value: 0: must be specified for an update", _RV_FIELD)
            raise invalid(f'{served.qualified} "{name}"', details, [cause])
        if (uid := metadata.get("uid")) and uid != before["metadata"]["uid"]:
            cause_text = (
                f"StorageError: invalid object, Code: 4, Key: /registry/{served.type.resource}/"
                f"{served.key(name, namespace)}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: "
                f"UID in precondition: {uid}, UID in object meta: {before['metadata']['uid']}"
            )
            raise conflict(details, cause_text, subject=served.qualified)
        if expected and expected != before["metadata"]["resourceVersion"]:
            raise conflict(details, _MODIFIED, subject=served.qualified)
        for field in _SET_BY_SERVER:
            metadata.pop(field, None)
            if field in before["metadata"]:
                metadata[field] = before["metadata"][field]
        if served.type.namespaced:
            metadata["namespace"] = namespace
        after = _with_defaults(served, {**obj, "metadata": metadata})
        if served.generation and _specified(after) != _specified(before):
            metadata["generation"] += 1
        if after == before:
            return before
        key = served.key(name, namespace)
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            # The last finalizer goes with the object, whose last stored state still has it.
            last = self._write(served, key, before, deleted=True)
            version = {"resourceVersion": last["metadata"]["resourceVersion"]}
            return _ordered({**after, "metadata": {**metadata, **version}})
        return self._write(served, key, after)

    def patch(self, served: ServedType, name: str, namespace: str, changes: Json) -> Json:
        """Applies a JSON merge patch.

        Raises:
            ApiError: as `replace`.
        """
        before = self._version(served, name, namespace).obj
        return self.replace(served, name, namespace, _merged(before, changes), strict=False)

    def delete(self, served: ServedType, name: str, namespace: str, *, options: Json | None = None) -> Json:
        """Deletes an object, or marks it as deleted where finalizers hold it; a namespace goes with its content.

        Args:
            served: its type.
            name: its name.
            namespace: its namespace.
            options: DeleteOptions, of which the preconditions count.

        Returns:
            Its last state, with the resourceVersion of this write.

        Raises:
            ApiError: 404, or 409 where a precondition does not hold.
        """
        before = self._version(served, name, namespace).obj
        self._check_preconditions(served, before["metadata"], (options or {}).get("preconditions") or {})
        key = served.key(name, namespace)
        is_namespace = served.group_resource == ("", "namespaces")
        marked = before
        if (before["metadata"].get("finalizers") or is_namespace) and "deletionTimestamp" not in before["metadata"]:
            marked = {**before, "metadata": {**before["metadata"], "deletionTimestamp": _now()}}
            if is_namespace:
                marked["status"] = {**marked.get("status", {}), "phase": "Terminating"}
            marked = self._write(served, key, marked)
        if is_namespace:
            self._empty(name)
        if before["metadata"].get("finalizers"):
            return marked
        return self._write(served, key, marked, deleted=True)

    def _empty(self, namespace: str) -> None:
        for group_resource, served in {each.group_resource: each for each in self._types}.items():
            if served.type.namespaced:
                for key, version in self._history.at(group_resource, self._history.revision):
                    if key.startswith(f"{namespace}/"):
                        self.delete(served, version.obj["metadata"]["name"], namespace)

    def _write(self, served: ServedType, key: str, obj: Json, *, deleted: bool = False) -> Json:
        # The history fills in the resourceVersion.
        placed = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "0"}}
        return self._history.write(served.group_resource, key, _ordered(placed), deleted=deleted)

    def _version(self, served: ServedType, name: str, namespace: str) -> Version:
        version = self._history.current(served.group_resource, served.key(name, namespace))
        if version is None:
            raise self.missing(served, name)
        return version

    def missing(self, served: ServedType, name: str) -> ApiError:
        """404 for an object of this name."""
        return not_found(self._details(served, name), served.qualified)

    def _name(self, served: ServedType, metadata: Json) -> str:
        name = metadata.get("name") or ""
        if not name and (prefix := metadata.get("generateName")):
            name = f"{prefix}{uuid.uuid4().hex[:5]}"
        kind = served.type.kind + (f".{served.type.group}" if served.type.group else "")
        details = {"name": name, "kind": served.type.kind}
        if served.type.group:
            details = {"name": name, "group": served.type.group, "kind": served.type.kind}
        if not name:
            del details["name"]
            cause = ("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")
            raise invalid(f'{kind} ""', details, [cause])
        if not _NAME.fullmatch(name):
            raise invalid(
                f'{kind} "{name}"',
                details,
                [("FieldValueInvalid", f'Invalid value: "{name}": {_NAME_RULE}', "metadata.name")],
            )
        return str(name)

    def _check_namespace(self, served: ServedType, namespace: str, metadata: Json, *, strict: bool) -> None:
        if not served.type.namespaced:
            return
        if metadata.get("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if strict:
            self.get(self._types.named("namespaces"), namespace, "")

    def _check_preconditions(self, served: ServedType, metadata: Json, preconditions: Mapping[str, str]) -> None:
        details = {**self._details(served, metadata["name"]), "kind": served.type.kind}
        kind = served.type.kind + (f".{served.type.group}" if served.type.group else "")
        for field, label, afterwards in (
            ("uid", "UID", "deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", "modified"),
        ):
            expected = preconditions.get(field)
            if expected is not None and expected != metadata[field]:
                cause = (
                    f"the {label} in the precondition ({expected}) does not match the {label} in record "
                    f"({metadata[field]}). The object might have been {afterwards}"
                )
                raise conflict(details, cause, subject=kind)

    @staticmethod
    def _details(served: ServedType, name: str) -> Json:
        group = {"group": served.type.group} if served.type.group else {}
        return {"name": name, **group, "kind": served.type.resource}


_RV_FIELD = "metadata.resourceVersion"


def _with_defaults(served: ServedType, obj: Json) -> Json:
    metadata = obj["metadata"]
    if served.group_resource == ("", "pods"):
        return {**obj, "status": {"phase": "Pending", **(obj.get("status") or {})}}
    if served.group_resource != ("", "namespaces"):
        return obj
    named = {"kubernetes.io/metadata.name": metadata["name"]}
    return {
        **obj,
        "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **named}},
        "spec": {"finalizers": ["kubernetes"], **obj.get("spec", {})},
        "status": {"phase": "Active", **obj.get("status", {})},
    }


def _ordered(obj: Json) -> Json:
    """An object with its metadata in the order of the apiserver, without apiVersion and kind."""
    metadata = obj["metadata"]
    ordered = {field: metadata[field] for field in _METADATA_ORDER if metadata.get(field)}
    ordered |= {field: value for field, value in metadata.items() if field not in _METADATA_ORDER}
    rest = {field: value for field, value in obj.items() if field not in {"metadata", "apiVersion", "kind"}}
    return {"metadata": ordered, **rest}


def _specified(obj: Json) -> Json:
    return {field: value for field, value in obj.items() if field not in {"metadata", "status", "apiVersion", "kind"}}


def _merged(target: Any, changes: Any) -> Any:
    """RFC 7396."""
    if not isinstance(changes, dict):
        return changes
    result = dict(target) if isinstance(target, dict) else {}
    for field, change in changes.items():
        if change is None:
            result.pop(field, None)
        else:
            result[field] = _merged(result.get(field), change)
    return result


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
