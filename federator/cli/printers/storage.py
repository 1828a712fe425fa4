"""Volumes, claims and storage drivers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from federator.cli.printers.printer import (
    Cell,
    Manifest,
    Printer,
    age_of,
    columns,
    dig,
    entries_at,
    mapping_at,
    name_of,
    text_at,
)

_ACCESS_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_DEFAULT_CLASS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)


def _access_modes(modes: Any) -> str:
    given = set(modes) if isinstance(modes, list) else set()
    return ",".join(short for mode, short in _ACCESS_MODES.items() if mode in given)


def _storage_class_of(manifest: Manifest) -> str:
    annotated = mapping_at(manifest, "metadata", "annotations").get("volume.beta.kubernetes.io/storage-class")
    return str(annotated) if annotated is not None else text_at(manifest, "spec", "storageClassName")


def _or_unset(value: Any) -> str:
    return "<unset>" if value is None else str(value)


def _phase(manifest: Manifest) -> str:
    deleted = dig(manifest, "metadata", "deletionTimestamp") is not None
    return "Terminating" if deleted else text_at(manifest, "status", "phase")


def _persistent_volume(volume: Manifest, now: datetime) -> Sequence[Cell]:
    claim = dig(volume, "spec", "claimRef")
    return (
        name_of(volume),
        dig(volume, "spec", "capacity", "storage") or "0",
        _access_modes(dig(volume, "spec", "accessModes")),
        text_at(volume, "spec", "persistentVolumeReclaimPolicy"),
        _phase(volume),
        "" if claim is None else f"{text_at(claim, 'namespace')}/{text_at(claim, 'name')}",
        _storage_class_of(volume),
        _or_unset(dig(volume, "spec", "volumeAttributesClassName")),
        text_at(volume, "status", "reason"),
        age_of(volume, now),
        _or_unset(dig(volume, "spec", "volumeMode")),
    )


def _persistent_volume_claim(claim: Manifest, now: datetime) -> Sequence[Cell]:
    volume = text_at(claim, "spec", "volumeName")
    return (
        name_of(claim),
        _phase(claim),
        volume,
        (dig(claim, "status", "capacity", "storage") or "0") if volume else "",
        _access_modes(dig(claim, "status", "accessModes")) if volume else "",
        _storage_class_of(claim),
        _or_unset(dig(claim, "spec", "volumeAttributesClassName")),
        age_of(claim, now),
        _or_unset(dig(claim, "spec", "volumeMode")),
    )


def _storage_class(storage_class: Manifest, now: datetime) -> Sequence[Cell]:
    # The apiserver marks only the newest of several defaults, which it sees because it prints whole lists.
    annotations = mapping_at(storage_class, "metadata", "annotations")
    is_default = any(annotations.get(annotation) == "true" for annotation in _DEFAULT_CLASS)
    return (
        f"{name_of(storage_class)} (default)" if is_default else name_of(storage_class),
        text_at(storage_class, "provisioner"),
        text_at(storage_class, "reclaimPolicy") or "Delete",
        text_at(storage_class, "volumeBindingMode") or "Immediate",
        storage_class.get("allowVolumeExpansion") is True,
        age_of(storage_class, now),
    )


def _volume_attachment(attachment: Manifest, now: datetime) -> Sequence[Cell]:
    return (
        name_of(attachment),
        text_at(attachment, "spec", "attacher"),
        text_at(attachment, "spec", "source", "persistentVolumeName"),
        text_at(attachment, "spec", "nodeName"),
        dig(attachment, "status", "attached") is True,
        age_of(attachment, now),
    )


def _volume_attributes_class(attributes_class: Manifest, now: datetime) -> Sequence[Cell]:
    return (name_of(attributes_class), text_at(attributes_class, "driverName"), age_of(attributes_class, now))


def _csi_node(node: Manifest, now: datetime) -> Sequence[Cell]:
    return (name_of(node), len(entries_at(node, "spec", "drivers")), age_of(node, now))


def _csi_driver(driver: Manifest, now: datetime) -> Sequence[Cell]:
    spec = mapping_at(driver, "spec")
    audiences = ",".join(text_at(request, "audience") for request in entries_at(spec, "tokenRequests"))
    return (
        name_of(driver),
        spec.get("attachRequired") is not False,
        spec.get("podInfoOnMount") is True,
        spec.get("storageCapacity") is True,
        "<unset>" if spec.get("tokenRequests") is None else audiences,
        spec.get("requiresRepublish") is True,
        ",".join(map(str, spec.get("volumeLifecycleModes") or ())) or "<none>",
        age_of(driver, now),
    )


PERSISTENT_VOLUMES = Printer(
    columns(
        "NAME,CAPACITY,ACCESS MODES,RECLAIM POLICY,STATUS,CLAIM,STORAGECLASS,VOLUMEATTRIBUTESCLASS,REASON,AGE,"
        "VOLUMEMODE*"
    ),
    _persistent_volume,
)
PERSISTENT_VOLUME_CLAIMS = Printer(
    columns("NAME,STATUS,VOLUME,CAPACITY,ACCESS MODES,STORAGECLASS,VOLUMEATTRIBUTESCLASS,AGE,VOLUMEMODE*"),
    _persistent_volume_claim,
)
STORAGE_CLASSES = Printer(
    columns("NAME,PROVISIONER,RECLAIMPOLICY,VOLUMEBINDINGMODE,ALLOWVOLUMEEXPANSION,AGE"), _storage_class
)
VOLUME_ATTACHMENTS = Printer(columns("NAME,ATTACHER,PV,NODE,ATTACHED,AGE"), _volume_attachment)
VOLUME_ATTRIBUTES_CLASSES = Printer(columns("NAME,DRIVERNAME,AGE"), _volume_attributes_class)
CSI_NODES = Printer(columns("NAME,DRIVERS,AGE"), _csi_node)
CSI_DRIVERS = Printer(
    columns("NAME,ATTACHREQUIRED,PODINFOONMOUNT,STORAGECAPACITY,TOKENREQUESTS,REQUIRESREPUBLISH,MODES,AGE"), _csi_driver
)
