"""What is collected, as the commands are told it."""

from __future__ import annotations

import pytest

from federator.agent.settings import SecretMode
from federator.cli.collecting import resource_names, secret_mode
from federator.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, ()),
        ([], ()),
        (["pods"], ("pods",)),
        (["pods,deploy"], ("pods", "deploy")),
        (["pods", "deploy,nodes"], ("pods", "deploy", "nodes")),
        (["pods,"], ("pods", "")),
    ],
)
def test_names_may_be_repeated_or_a_list_and_an_empty_one_is_kept_to_be_refused(
    given: list[str] | None, names: tuple[str, ...]
) -> None:
    assert resource_names(given) == names


@pytest.mark.parametrize("mode", SecretMode)
def test_every_mode_is_read(mode: SecretMode) -> None:
    assert secret_mode(str(mode)) is mode


@pytest.mark.parametrize("text", ["", "on", "OFF", "Metadata"])
def test_another_mode_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        secret_mode(text)
    assert (refused.value.field, refused.value.given) == ("--secrets", text)
    assert refused.value.allowed == "off, metadata, fingerprint"
