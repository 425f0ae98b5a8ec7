from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.contrib.auth.hashers import make_password
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.factories import StaffFactory
from tests.faults.servers import web_server

PASSWORD = "correct horse battery staple"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return
    for item in items:
        if "/browser/" in str(item.path):
            item.add_marker(pytest.mark.skip(reason="Debian's chromium and chromedriver needed"))


class Page:
    """A person at the back office."""

    def __init__(self, driver: webdriver.Chrome, origin: str) -> None:
        self.driver = driver
        self.origin = origin

    def open(self, path: str) -> None:
        self.driver.get(self.origin + path)

    def type(self, field: str, text: str) -> None:
        self.driver.find_element(By.NAME, field).send_keys(text)

    def press(self, label: str) -> None:
        """A button or link, by what it says; returns when the next page is there."""
        shapes = ("//button[normalize-space()='{}']", "//input[@value='{}']", "//a[.='{}']")
        labels = " | ".join(shape.format(label) for shape in shapes)
        before = self.driver.find_element(By.TAG_NAME, "html")
        self.driver.find_element(By.XPATH, labels).click()
        WebDriverWait(self.driver, 10).until(lambda _: _is_gone(before))

    def choose_action(self, action: str) -> None:
        """In a list: select the only row, then run the action on it."""
        self.driver.find_element(By.NAME, "_selected_action").click()
        self.driver.find_element(By.XPATH, f"//select[@name='action']/option[.='{action}']").click()
        self.press("Go")

    @property
    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text


def _is_gone(element: WebElement) -> bool:
    try:
        element.is_enabled()
    except StaleElementReferenceException:
        return True
    return False


@pytest.fixture
def page(tmp_path: Path, transactional_db: None) -> Iterator[Page]:
    # As in a local copy: with DEBUG the web server takes plain HTTP.
    with web_server(tmp_path, DEBUG="1") as web, _chromium(tmp_path / "profile") as driver:
        yield Page(driver, f"http://127.0.0.1:{web.port}")


@contextmanager
def _chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--window-size=1400,1000",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def office(page: Page) -> Page:
    """Logged in."""
    StaffFactory.create(email="staff@example.com", password=make_password(PASSWORD))
    page.open("/admin/")
    page.type("username", "staff@example.com")
    page.type("password", PASSWORD)
    page.press("Log in")
    return page
