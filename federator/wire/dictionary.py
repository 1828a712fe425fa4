"""Dictionaries as messages of ingest.proto."""

from __future__ import annotations

from federator.api.resource import GroupResource
from federator.v1 import ingest_pb2
from federator.wire.body import Dictionary


def dictionary_to_proto(dictionary: Dictionary) -> ingest_pb2.Dictionary:
    """Returns the message of a dictionary."""
    group, resource = dictionary.resource
    return ingest_pb2.Dictionary(group=group, resource=resource, content=dictionary.content)


def dictionary_from_proto(message: ingest_pb2.Dictionary) -> Dictionary:
    """Returns the dictionary that a message carries.

    Raises:
        InvalidInput: the content is no dictionary, or too large.
    """
    return Dictionary.of(GroupResource(message.group, message.resource), message.content)
