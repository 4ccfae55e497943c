"""A browser, a server with untrained models, and the page in the one from the other."""

from __future__ import annotations

import pytest

from explorer.page.browsing import CHROMIUM, IMAGE, Oracle, browser, opened, upload
from explorer.running import running_server


@pytest.fixture(scope="module")
def chromium():
    if CHROMIUM is None:
        pytest.skip("there is no chromium; apt-get install chromium")
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def url(models):
    with running_server(models) as (host, port):
        yield f"http://{host}:{port}/"


@pytest.fixture(scope="module")
def oracle(models):
    return Oracle(models[0].model, IMAGE)


@pytest.fixture
def page(chromium, url):
    with opened(chromium, url) as page:
        yield page


@pytest.fixture
def photo_page(page):
    upload(page, IMAGE)
    return page
