"""What the tests of the cache on real apiservers share."""

import pytest


@pytest.fixture
def quick_dials(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dial_soon` has a Reflector dial at once, and not within two seconds."""
    monkeypatch.setattr("federator.cache.reflector.DIAL_SPREAD", 0.1)
