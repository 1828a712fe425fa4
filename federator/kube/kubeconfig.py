"""Kubeconfig files: several merged into one, as kubectl merges them, with every fault kept to what it concerns.

The first file that names an entry or the current context wins. A file that cannot be read and an entry that is broken
are named and skipped; the rest works.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import yaml

from federator.errors import CredentialsError

Section = Mapping[str, Any]
"""The part of an entry beside its name, as the file has it."""

_SECTIONS = {"contexts": "context", "clusters": "cluster", "users": "user"}
_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
# libyaml reads a kubeconfig of a thousand contexts in a tenth of the time.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ContextEntry(msgspec.Struct, frozen=True):
    """One context of the kubeconfig, or something in it that is broken.

    Attributes:
        name: the context's name; of a broken file its path, of a context without name its place in the file.
        error: why it cannot be used, in one sentence without secrets; None where nothing is known against it. What
            only the server or a credential plugin can tell is not known here.
    """

    name: str
    error: str | None = None


def kubeconfig_contexts(path: str | Path | None = None) -> list[ContextEntry]:
    """The contexts of the kubeconfig in the order of its files, each with what is wrong with it. Reads files: blocks.

    Args:
        path: one file; without it those that KUBECONFIG names (missing ones are ignored, as by kubectl), or
            `~/.kube/config` where that exists.
    """
    return Kubeconfig.load(path).contexts()


class Context(NamedTuple):
    """One sound context: the sections it joins, with absolute paths; the user's is empty where it names none."""

    name: str
    cluster: Section
    user: Section


class Kubeconfig:
    """What the kubeconfig files say together."""

    def __init__(self) -> None:
        self.current_context = ""
        self._sections: dict[str, dict[str, Section]] = {section: {} for section in _SECTIONS}
        self._broken: list[ContextEntry] = []

    @classmethod
    def load(cls, path: str | Path | None = None) -> Kubeconfig:
        """Reads and merges the files; see `kubeconfig_contexts`. A broken file is kept as a broken entry."""
        kubeconfig = cls()
        for file in _files(path):
            try:
                content = yaml.load(file.read_bytes(), Loader=_Loader)  # a safe loader, see above
                kubeconfig._merge(content if content is not None else {}, file)
            except OSError as error:
                kubeconfig._broken.append(ContextEntry(str(file), f"cannot be read: {error.strerror}"))
            except (yaml.YAMLError, UnicodeDecodeError, TypeError):
                # A YAML error quotes the line it stopped at, which may be a token.
                kubeconfig._broken.append(ContextEntry(str(file), "is not a kubeconfig"))
        return kubeconfig

    def contexts(self) -> list[ContextEntry]:
        """All contexts with their faults, then what is broken beside them."""
        return [ContextEntry(name, self._fault(name)) for name in self._sections["contexts"]] + self._broken

    def context(self, name: str | None) -> Context:
        """The named or the current context, with its cluster and user.

        Raises:
            CredentialsError: there is no such context, or it is broken.
        """
        name = name or self.current_context
        if name not in self._sections["contexts"]:
            known = ", ".join(self._sections["contexts"]) or "none"
            broken = "".join(f"; {entry.name} {entry.error}" for entry in self._broken)
            raise CredentialsError(name or "current context", f"no such context; known: {known}{broken}")
        fault = self._fault(name)
        if fault is not None:
            raise CredentialsError(name, fault)
        joined = self._sections["contexts"][name]
        user = self._sections["users"][joined["user"]] if joined.get("user") else {}
        return Context(name, self._sections["clusters"][joined["cluster"]], user)

    def _merge(self, content: Any, file: Path) -> None:
        if not isinstance(content, Mapping):
            raise TypeError
        self.current_context = self.current_context or str(content.get("current-context") or "")
        for section, key in _SECTIONS.items():
            entries = content.get(section) or []
            if not isinstance(entries, list):
                raise TypeError
            for position, entry in enumerate(entries):
                name, value = (entry.get("name"), entry.get(key)) if isinstance(entry, Mapping) else (None, None)
                if isinstance(name, str) and name and isinstance(value, Mapping):
                    self._sections[section].setdefault(name, _absolute(value, file.parent.absolute()))
                else:
                    named = name if section == "contexts" and isinstance(name, str) else ""
                    place = named or f"{file}: {section}[{position}]"
                    self._broken.append(ContextEntry(place, f"has no name or no {key!r}"))

    def _fault(self, context: str) -> str | None:
        joined = self._sections["contexts"][context]
        cluster_name, user_name = joined.get("cluster"), joined.get("user")
        cluster = self._sections["clusters"].get(cluster_name) if isinstance(cluster_name, str) else None
        if cluster is None:
            return f"names cluster {cluster_name!r}, which does not exist"
        fault = _cluster_fault(cluster)
        if fault is not None or not user_name:
            return fault
        user = self._sections["users"].get(user_name) if isinstance(user_name, str) else None
        return _user_fault(user) if user is not None else f"names user {user_name!r}, which does not exist"


def _files(path: str | Path | None) -> list[Path]:
    if path is not None:
        return [Path(path)]
    named = os.environ.get("KUBECONFIG")
    paths = map(Path, filter(None, named.split(os.pathsep))) if named else iter([Path("~/.kube/config")])
    return [file for file in (path.expanduser() for path in paths) if file.exists()]


def _absolute(section: Section, directory: Path) -> Section:
    """The section with every path in it absolute: they are relative to the file they stand in."""
    resolved = dict(section)
    for name in _FILES:
        if isinstance(section.get(name), str) and section[name]:
            resolved[name] = str(directory / section[name])
    execution = section.get("exec")
    if isinstance(execution, Mapping) and "/" in str(execution.get("command")):
        resolved["exec"] = {**execution, "command": str(directory / str(execution["command"]))}
    return resolved


def _cluster_fault(cluster: Section) -> str | None:
    server = cluster.get("server")
    try:
        url = urlsplit(server) if isinstance(server, str) else None
        sound = url is not None and url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        sound = False
    if not sound:
        return "its cluster has no server with an http or https URL"
    if url is not None and "@" in url.netloc:
        return "its cluster's server URL carries credentials; they belong to the user"
    proxy = cluster.get("proxy-url")
    if proxy and not str(proxy).startswith(("http://", "https://")):
        return "its cluster's proxy-url is not http or https; SOCKS proxies are not supported"
    return _file_fault(cluster, "certificate-authority")


def _user_fault(user: Section) -> str | None:
    if any(name == "as" or str(name).startswith("as-") for name in user):
        # To ignore it would be to act with more rights than asked for.
        return "its user impersonates another, which is not supported"
    execution = user.get("exec")
    if execution is not None and not (
        isinstance(execution, Mapping) and execution.get("command") and execution.get("apiVersion")
    ):
        return "its user has an exec plugin without command or apiVersion"
    return next((fault for name in _FILES if (fault := _file_fault(user, name))), None)


def _file_fault(entry: Section, name: str) -> str | None:
    data = entry.get(f"{name}-data")
    if data:
        try:
            base64.b64decode(data, validate=False)
        except (binascii.Error, TypeError, ValueError):
            return f"its {name}-data is not base64"
        return None
    file = entry.get(name)
    if file and not Path(file).is_file():
        return f"its {name} names {file}, which does not exist"
    return None
