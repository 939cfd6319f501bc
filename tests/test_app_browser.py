"""The app in a real browser: what a person does and sees."""

import re
import shutil

import pytest

pytest.importorskip("gradio")
pytest.importorskip("playwright")

from paced import paced_studio
from playwright.sync_api import expect, sync_playwright

import app
from ssd_core.speeds import at_speed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium here (Debian: apt-get install chromium)")
LONG = 120_000  # milliseconds: a race on a slow and busy machine
expect.set_options(timeout=LONG / 4)


@pytest.fixture(scope="module")
def url():
    page = app.Page(paced_studio(0.006))
    page.demo.queue(max_size=app.VISITORS)
    _, url, _ = page.demo.launch(prevent_thread_lock=True, quiet=True, **app.launch_options())
    yield url
    page.turnstile.stop_all()
    page.demo.close()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, url):
    """Opens pages; afterwards there was no error in a console and no request to anywhere else."""
    contexts, errors, outside = [], [], []

    def guard(route):
        if route.request.url.startswith((url, "data:", "blob:")):
            route.continue_()
        else:
            outside.append(route.request.url)
            route.abort()

    def visit(query="", width=1280, height=1000, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LONG / 4)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.route("**/*", guard)
        page.goto(url + query)
        page.locator("#go").wait_for()
        expect(page.locator("#race .ssd-race")).not_to_have_attribute("data-mode", "empty")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not errors
    assert not outside


def view(page):
    return page.locator("#race .ssd-race")


def drawn(page, side):
    return int(page.locator("#race .ssd-lane").nth(side).get_attribute("data-drawn") or 0)


def start(page, prompt="a fox on snow"):
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.keyboard.press("Enter")


def until(page, mode):
    expect(view(page)).to_have_attribute("data-mode", mode, timeout=LONG)


def test_a_race_to_the_verdict_then_replay_compare_and_inside(visit):
    page = visit()
    start(page)
    until(page, "live")
    expect(page.locator("#go")).to_be_disabled()
    until(page, "final")
    expect(page.locator("#go")).to_be_enabled()
    verdict = page.locator("#race .ssd-verdict").inner_text()
    share = re.search(r"had drawn (\d+) %", verdict)[1]
    expect(page.locator("#race .ssd-pictures img")).to_have_count(2)

    page.locator("#race .ssd-mark span").click()  # the same share at the same moment in the replay
    numbers = page.locator("#race .ssd-drawn")
    shares = [int(re.search(r"\((\d+) %\)", numbers.nth(side).inner_text())[1]) for side in (0, 1)]
    assert max(shares) == 100
    assert abs(min(shares) - int(share)) <= 1

    seek = page.get_by_label("Replay position").first
    seek.focus()
    page.keyboard.press("Home")
    assert (drawn(page, 0), drawn(page, 1)) == (0, 0)
    page.keyboard.press("Space")
    expect(view(page)).to_have_attribute("data-playing", "true")
    page.keyboard.press("Space")
    expect(view(page)).to_have_attribute("data-playing", "false")
    page.keyboard.press("End")
    assert (drawn(page, 0), drawn(page, 1)) == (576, 576)

    page.get_by_role("tab", name="Compare", exact=True).click()
    page.get_by_label("How much of the left picture is shown").focus()
    page.keyboard.press("End")
    assert page.locator("#compare .ssd-over").evaluate("node => node.style.clipPath") == "inset(0px 0% 0px 0px)"
    with page.expect_download() as saved:
        page.locator("#compare .ssd-save").nth(1).click()
    assert re.fullmatch(rf"ssd-\d+-{at_speed('balanced', 'builtin').decoder}\.png", saved.value.suggested_filename)
    assert saved.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert b"a fox on snow" in saved.value.path().read_bytes()
    link = page.get_by_label("Link to this run").input_value()
    assert "prompt=a+fox+on+snow&seed=" in link

    page.get_by_role("tab", name="Inside", exact=True).click()
    page.locator("#inside canvas").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#inside .ssd-cell")).to_contain_text("Row 1, column 1: sampled, never drafted; final at")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#inside .ssd-cell")).to_contain_text("Row 2, column 1: draft ")


def test_the_first_thing_on_the_page_is_a_recorded_race(visit):
    page = visit()
    expect(view(page)).to_have_attribute("data-mode", "recording")
    expect(view(page)).to_have_attribute("data-playing", "true")
    page.get_by_role("tab", name="Gallery", exact=True).click()
    page.locator("#choice input").nth(1).check()
    expect(page.locator("#gallery .ssd-race")).to_have_attribute("data-playing", "true")


def test_stop_keeps_the_partial_pictures_and_another_race_can_start(visit):
    page = visit()
    for _ in range(2):
        start(page)
        until(page, "live")
        expect(page.locator("#halt")).to_be_enabled()
        page.locator("#halt").click()
        until(page, "stopped")
        expect(page.locator("#go")).to_be_enabled()
        expect(page.locator("#halt")).to_be_disabled()
        assert drawn(page, 0) < 576
        expect(page.locator("#race .ssd-verdict")).to_contain_text("Stopped: AR had drawn")


def test_the_speed_slider_by_keyboard(visit):
    page = visit()
    slider = page.get_by_label("Speed", exact=True)
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#speed .ssd-detail")).to_contain_text(app.title(at_speed("fast", "builtin")))
    page.keyboard.press("End")
    expect(page.locator("#speed .ssd-detail")).to_contain_text("SSD r=0, 34 passes instead of 576")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("^Fastest: SSD r=0"))
    page.locator("#advanced button").first.click()
    rounds = page.get_by_label("Rounds b").nth(1)
    expect(rounds).to_have_value("0")
    page.keyboard.press("Home")
    rounds.fill("3")
    expect(page.locator("#speed .ssd-detail")).to_contain_text("Custom: ssd b=3")


def test_a_link_and_dark_mode(visit):
    page = visit("?prompt=a+cat+on+sand&seed=12&speed=fast&__theme=dark")
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("a cat on sand")
    expect(page.locator("#speed .ssd-speed")).to_have_attribute("data-speed", "fast")
    expect(page.locator("body")).to_have_class(re.compile("dark"))
    background = page.locator(".gradio-container").evaluate("node => getComputedStyle(node).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", background)[:3])) < 150
    text = page.locator("#race .ssd-title").first.evaluate("node => getComputedStyle(node).color")
    assert sum(map(int, re.findall(r"\d+", text)[:3])) > 450
    page.locator("#go").click()
    until(page, "final")
    expect(page.locator("#race .ssd-status")).to_contain_text("Seed 12.")


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_never_scrolls_sideways(visit, width):
    page = visit("?prompt=a+fox&seed=3&speed=fastest", width=width, height=844, has_touch=True)
    for name in ("Race", "Compare", "Inside", "Sweep", "Gallery", "Model", "API"):
        page.get_by_role("tab", name=name, exact=True).click()
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name


def test_two_tabs_wait_in_one_line(visit):
    first, second = visit(), visit()
    start(first)
    until(first, "live")
    start(second, "a cat on grass")
    expect(second.locator("#race .ssd-status")).to_contain_text("In line, 1 ahead of you.")
    first.locator("#halt").click()
    until(first, "stopped")
    until(second, "live")
    second.locator("#halt").click()
    until(second, "stopped")


def test_a_closed_tab_makes_way(visit):
    first = visit()
    start(first)
    until(first, "live")
    second = visit()
    first.close()
    start(second)
    until(second, "live")
    second.locator("#halt").click()
    until(second, "stopped")


@pytest.mark.parametrize(
    ("prompt", "message"), [("  ", "There is no prompt yet"), ("a unicorn", 'does not know "unicorn"')]
)
def test_a_prompt_that_cannot_be_drawn_is_explained(visit, prompt, message):
    page = visit()
    start(page, prompt)
    expect(page.locator("#race .ssd-status")).to_contain_text(message)
    expect(view(page)).to_have_attribute("data-notice", "error")
    expect(page.locator("#go")).to_be_enabled()


def test_a_sweep_fills_its_sheet(visit):
    page = visit("?prompt=a+fox&seed=3&speed=fast")
    page.get_by_role("tab", name="Sweep", exact=True).click()
    page.locator("#sweep-go").click()
    sweep = page.locator("#sweep .ssd-sweep")
    expect(sweep).to_have_attribute("data-mode", "final", timeout=LONG)
    expect(sweep).to_have_attribute("data-cards", "6")
    expect(page.locator("#sweep circle")).to_have_count(5)
    with page.expect_download() as saved:
        page.locator("#sweep .ssd-save").click()
    assert saved.value.suggested_filename == "ssd-3-sweep.png"
