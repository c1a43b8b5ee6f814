from collections.abc import Iterator

import pytest
from switch_help import KEY

from plait.switch import native
from plait.switch.daemon import Switch


@pytest.fixture(autouse=True)
def _library() -> None:
    if lack := native.missing():
        pytest.skip(lack)


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(key=KEY) as made:
        yield made
