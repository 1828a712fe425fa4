"""The package itself: its version, read only when asked for."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

import federator


def test_the_version_is_that_of_the_installed_package() -> None:
    assert federator.__version__ == version("federator")
    assert federator.__all__ == ["__version__"]


def test_another_name_is_an_attribute_error() -> None:
    package: Any = federator
    with pytest.raises(AttributeError, match="Aggregator"):
        _ = package.Aggregator
    assert not hasattr(federator, "versions")
