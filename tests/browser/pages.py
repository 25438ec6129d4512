"""What a test does in a browser: go somewhere, log in, press keys, look."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.http import HttpRequest, HttpResponse
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

DEADLINE = 20.0
WIDE = 1280
PHONE = 390
MOST_KEYS = 200

LABEL = """
function label(element) {
    const typed = element.matches("textarea, select, input:not([type=submit])");
    return (typed ? element.name : element.value || element.innerText || "").trim();
}
"""
"""What is written on a link or a button; of a field, its name."""
OPERABLE = (
    LABEL + "return [...document.querySelectorAll('a, button, input')].filter(found => label(found) === arguments[0]);"
)
FOCUSED = LABEL + "const at = document.activeElement; return [label(at), at.matches(':focus-visible')];"
CONTRAST = """
const wanted = arguments[0];
function rgb(text) { return text.match(/[\\d.]+/g).map(Number); }
function light([r, g, b]) {
    const [x, y, z] = [r, g, b].map(c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}
function ground(element) {
    for (let at = element; at; at = at.parentElement) {
        const colour = rgb(getComputedStyle(at).backgroundColor);
        if (colour.length === 3 || colour[3] > 0) { return colour; }
    }
    return [255, 255, 255];
}
return [...document.querySelectorAll(wanted)].map(element => {
    const style = getComputedStyle(element);
    const drawn = element instanceof SVGGeometryElement;
    const ink = drawn ? (style.fill === "none" ? style.stroke : style.fill) : style.color;
    const [one, two] = [light(rgb(ink)), light(ground(drawn ? element.ownerSVGElement : element))];
    return [element.getAttribute("class"), (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05)];
});
"""


def strict_policy(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Forbid pages whatever does not come from their own files: a middleware."""

    def respond(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers["Content-Security-Policy"] = "default-src 'self'; img-src 'self' data:"
        return response

    return respond


def start(program: str, driver: str) -> webdriver.Chrome:
    """Start a browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # Containers have no user namespaces and little shared memory.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


class Browser:
    """A browser before a site."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        self._address = address

    def forget(self) -> None:
        """Be nobody, and as wide as usual."""
        self.resize(WIDE)
        self.open("/admin/login/")
        self.driver.delete_all_cookies()
        self.theme("light")
        self.driver.get_log("browser")

    def open(self, url: str) -> None:
        """Go to an address of the site."""
        self.driver.get(self._address + url)

    def login(self, name: str, *, then: str = "/admin/") -> None:
        """Log in by the form."""
        self.open(f"/admin/login/?next={then}")
        self.find("[name=username]").send_keys(name)
        self.find("[name=password]").send_keys("secret" + Keys.ENTER)
        self.wait(lambda: "/login/" not in self.path or self.has(".errornote"))

    @property
    def path(self) -> str:
        """Return where it is."""
        return str(self.driver.current_url).removeprefix(self._address)

    @property
    def text(self) -> str:
        """Return what can be read on the page."""
        return self.find("body").text

    def find(self, css: str) -> WebElement:
        """Return the first such element."""
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def has(self, css: str) -> bool:
        """Tell whether there is such an element."""
        return bool(self.driver.find_elements(By.CSS_SELECTOR, css))

    def click(self, text: str) -> None:
        """Press a link or a button by what is written on it, and wait for the page it leads to."""
        [element] = self.driver.execute_script(OPERABLE, text)
        self._leave(element.click)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until something is so."""
        WebDriverWait(self.driver, DEADLINE, poll_frequency=0.05).until(lambda _driver: condition())

    def says(self, text: str) -> bool:
        """Tell whether the page has such a message."""
        return text in self.find(".messagelist").text

    # Keys.

    def tab_to(self, text: str) -> None:
        """Press Tab until a link, a button or a field is reached, which must be seen to have the focus."""
        for _ in range(MOST_KEYS):
            self.press(Keys.TAB)
            label, is_seen = self.driver.execute_script(FOCUSED)
            if label == text:
                assert is_seen
                return
        raise AssertionError(f"Tab does not lead to {text!r}.")

    def press(self, *keys: str) -> None:
        """Press keys."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def enter(self) -> None:
        """Press Enter, and wait for the page it leads to."""
        self._leave(lambda: self.press(Keys.ENTER))

    # Looks.

    def theme(self, name: str) -> None:
        """Choose the light theme or the dark one, as the button of the admin does."""
        self.driver.execute_script("localStorage.setItem('theme', arguments[0])", name)

    def resize(self, width: int) -> None:
        """Be as wide as a screen or a phone."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        found = self.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        return int(found)

    def contrasts(self, css: str) -> dict[str, float]:
        """Return the least contrast of such elements by their classes."""
        found: dict[str, float] = {}
        for name, contrast in self.driver.execute_script(CONTRAST, css):
            found[name] = min(contrast, found.get(name, contrast))
        return found

    def photograph(self, name: str) -> None:
        """Keep a picture of the page, if CRONDUCTOR_SCREENSHOTS names a directory."""
        directory = os.environ.get("CRONDUCTOR_SCREENSHOTS")
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(Path(directory) / f"{name}.png"))

    def complaints(self) -> list[str]:
        """Return what the browser did not like: errors of scripts, and what the site's policy forbids."""
        found: list[dict[str, Any]] = self.driver.get_log("browser")
        return [
            entry["message"]
            for entry in found
            if entry["level"] == "SEVERE" and "favicon.ico" not in entry["message"] and "403" not in entry["message"]
        ]

    def _leave(self, act: Callable[[], object]) -> None:
        before = self.find("html")
        act()
        self.wait(lambda: self.find("html") != before and self._is_complete())

    def _is_complete(self) -> bool:
        return bool(self.driver.execute_script("return document.readyState") == "complete")
