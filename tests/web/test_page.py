"""The page in a real browser, against the real worker.

SCREENSHOTS=docs/web writes pictures of its views into that folder.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from memory_tasks import Scope
from tests.conditions import wait_for
from tests.conftest import make_turn
from tests.requirements import required
from tests.system import System
from tests.web.conftest import Server, serving
from tests.web.host import TOKEN

USER = "me"
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
SCHEMES = ("light", "dark")
SIZES = {"desktop": (1200, 800), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    required(chromium, "Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def server(web_system: System) -> Iterator[Server]:
    with serving(web_system, "workers.web:create_app") as found:
        yield found


@pytest.fixture
def conversation() -> str:
    return f"c-{uuid.uuid4().hex}"


@pytest.fixture
def page(browser: Browser, server: Server, conversation: str) -> Iterator[Page]:
    """A browser that may load nothing from elsewhere, and in which nothing may go wrong."""
    context = browser.new_context()
    found = context.new_page()
    wrong: list[str] = []
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("request", lambda asked: None if asked.url.startswith(server.url) else wrong.append(asked.url))
    found.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
    open_chat(found, server, conversation)
    yield found
    context.close()
    assert wrong == []


def open_chat(page: Page, server: Server, conversation: str) -> None:
    page.goto(f"{server.url}/#/chat")
    page.get_by_label("Conversation", exact=True).first.fill(conversation)
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#turns article")).to_have_count(0)


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def turn(page: Page, text: str) -> Any:
    return page.locator("#turns article").filter(has_text=text)


def ends(page: Page, text: str, state: str = "saved") -> None:
    expect(turn(page, text).locator(".state")).to_have_text(state, timeout=30_000)


def turn_id(page: Page, text: str) -> str:
    return str(turn(page, text).get_attribute("data-turn"))


def begins(page: Page, text: str) -> None:
    """Wait until three quarters of a held answer are there."""
    answer = f"re: {text} [2 messages]"
    shown = answer[: 3 * -(-len(answer) // 4)]
    expect(turn(page, text).locator(".answer")).to_have_text(shown, timeout=30_000)


def test_an_answer_is_shown_while_it_is_written(page: Page, web_system: System) -> None:
    gate = uuid.uuid4().hex
    say(page, f"hold:{gate} tell me")
    begins(page, f"hold:{gate} tell me")
    expect(turn(page, gate).locator(".state")).to_have_text("answering")
    (web_system.folder / gate).touch()
    ends(page, gate)
    expect(turn(page, gate).locator(".answer")).to_have_text(f"re: hold:{gate} tell me [2 messages]")
    assert web_system.calls(turn_id(page, gate)) == 1


def test_three_messages_at_once_are_answered_in_order(page: Page, web_system: System) -> None:
    gate = uuid.uuid4().hex
    messages = [f"gate:{gate} one", "stream:3 two", "three"]
    for message in messages:
        say(page, message)
    expect(page.locator("#turns article .said")).to_have_text(messages)
    ends(page, "three", "waiting")
    (web_system.folder / gate).touch()
    for number, message in enumerate(messages):
        ends(page, message)
        expect(turn(page, message).locator(".answer")).to_have_text(f"re: {message} [{2 * number + 2} messages]")
    expect(page.locator("#turns article .said")).to_have_text(messages)


def test_a_reload_in_mid_answer_goes_on(page: Page, web_system: System) -> None:
    gate = uuid.uuid4().hex
    say(page, f"hold:{gate} tell me")
    begins(page, f"hold:{gate} tell me")
    page.reload()
    begins(page, f"hold:{gate} tell me")
    (web_system.folder / gate).touch()
    ends(page, gate)
    expect(turn(page, gate).locator(".answer")).to_have_text(f"re: hold:{gate} tell me [2 messages]")
    assert web_system.calls(turn_id(page, gate)) == 1


def test_a_lost_connection_in_mid_answer_goes_on(page: Page, server: Server, web_system: System) -> None:
    gate = uuid.uuid4().hex
    say(page, f"hold:{gate} tell me")
    begins(page, f"hold:{gate} tell me")
    server.stop()
    say(page, "typed while nobody listens")
    server.start()
    (web_system.folder / gate).touch()
    ends(page, gate)
    expect(turn(page, gate).locator(".answer")).to_have_text(f"re: hold:{gate} tell me [2 messages]")
    ends(page, "typed while nobody listens")
    assert web_system.calls(turn_id(page, gate)) == web_system.calls(turn_id(page, "typed while")) == 1


def test_a_worker_killed_in_mid_answer_is_no_matter(page: Page, web_system: System) -> None:
    gate = uuid.uuid4().hex
    say(page, f"hold:{gate} tell me")
    begins(page, f"hold:{gate} tell me")
    web_system.kill("worker")
    (web_system.folder / gate).touch()
    web_system.start_worker()
    ends(page, gate)
    expect(turn(page, gate).locator(".answer")).to_have_text(f"re: hold:{gate} tell me [2 messages]")
    # The window that stays open: the kill came while the model was answering.
    assert web_system.calls(turn_id(page, gate)) == 2


def test_what_is_remembered_is_shown_found_and_forgotten(page: Page, conversation: str) -> None:
    page.get_by_label("Remember this").check()
    say(page, "the zebra lives in Kenya")
    ends(page, "zebra", "in long-term memory")
    say(page, "a word about tea")
    ends(page, "tea")
    page.get_by_role("link", name="Memory").click()
    items = page.locator("#timeline li")
    expect(items).to_have_count(2)
    expect(items.first).to_contain_text("working memory and long-term memory")
    page.get_by_role("searchbox").fill("where does the zebra live")
    page.get_by_role("button", name="Search").click()
    expect(items).to_have_count(1)
    expect(items.first).to_contain_text("zebra")
    items.first.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(items).to_have_count(1)
    items.first.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(page.locator("#notice")).to_have_text(
        "Forgotten: 1 in working memory, 1 in long-term memory, 1 in the ledger."
    )
    page.get_by_role("button", name="Forget this conversation").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(page.locator("#notice")).to_contain_text("Forgotten: 1 in working memory, 0 in long-term memory")
    expect(items).to_have_count(0)
    page.get_by_role("link", name="Chat").click()
    expect(page.locator("#turns article")).to_have_count(0)


def test_all_of_a_user_is_forgotten(page: Page, web_system: System) -> None:
    say(page, "hello")
    ends(page, "hello")
    page.get_by_role("link", name="Memory").click()
    page.get_by_role("button", name="Forget everything about me").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(page.locator("#notice")).to_contain_text("Forgotten:")
    assert list(web_system.client.export(user_id=USER)) == []


def test_a_dead_letter_is_retried(page: Page, web_system: System, conversation: str) -> None:
    say(page, "final:1 please")
    expect(turn(page, "final:1").locator(".state")).to_have_text("failed in complete: CompletionError", timeout=30_000)
    failed = turn_id(page, "final:1")
    unlock(page)
    row = page.locator(f"#failed tr[data-turn='{failed}']")
    expect(row).to_contain_text("complete: CompletionError")
    expect(page.locator("#operations")).not_to_contain_text("please")
    row.get_by_role("button", name="Retry").click()
    expect(row).to_have_count(0)
    page.get_by_role("link", name="Chat").click()
    ends(page, "final:1")


def unlock(page: Page, token: str = TOKEN) -> None:
    page.get_by_role("link", name="Operations").click()
    page.get_by_label("Operations token").fill(token)
    page.get_by_role("button", name="Unlock").click()


def test_operations_are_locked_without_their_token(page: Page, server: Server) -> None:
    unlock(page, "wrong")
    expect(page.locator("#notice")).to_have_text("The operations token is missing or wrong.")
    expect(page.locator("#unlocked")).to_be_hidden()
    unlock(page)
    expect(page.locator("#checks")).to_contain_text("Redis")


def test_without_a_token_there_are_no_operations(browser: Browser, web_system: System) -> None:
    off = {name: value for name, value in web_system.environment.items() if not name.endswith("OPERATIONS_TOKEN")}
    with serving(web_system, "workers.web:create_app", environment=off) as server:
        page = browser.new_page()
        page.goto(f"{server.url}/#/operations")
        expect(page.locator("#notice")).to_contain_text("Operations are off: set MEMORY_TASKS_OPERATIONS_TOKEN")
        page.close()


def test_markup_is_shown_as_text(page: Page, server: Server, web_system: System) -> None:
    strange = f"<img src=x onerror='window.hacked=1'> {uuid.uuid4().hex}"
    memory = make_turn("<b>t1<b>", f"the zebra said {EVIL}", EVIL)
    web_system.service.remember(Scope(user_id=USER, conversation_id=strange), memory)
    page.get_by_label("Conversation", exact=True).first.fill(strange)
    page.get_by_role("button", name="Open").click()
    say(page, f"final:1 what did the zebra say {EVIL}")
    expect(turn(page, "what did").locator(".state")).to_contain_text("failed", timeout=30_000)
    say(page, f"what did the zebra say {EVIL}")
    last = page.locator("#turns article").last
    expect(last.locator(".state")).to_have_text("saved", timeout=30_000)
    expect(last.locator(".answer")).to_contain_text(EVIL)
    expect(last.locator(".recalled")).to_contain_text("Recalled 1 memory")
    expect(last.locator(".recalled")).to_contain_text(EVIL)
    page.get_by_role("link", name="Memory").click()
    expect(page.locator("#timeline li").first).to_contain_text(EVIL)
    unlock(page)
    expect(page.locator("#failed")).to_contain_text(strange)
    assert page.evaluate("window.hacked") is None


def test_another_site_can_neither_frame_nor_name_the_page(page: Page, server: Server) -> None:
    headers = page.request.get(server.url).headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert page.request.get(server.url, headers={"Host": "evil.example"}).status == 400
    missing = page.request.get(f"{server.url}/nothing")
    assert (missing.status, json.loads(missing.body())["title"]) == (404, "Not Found")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_view_is_accessible(
    browser: Browser, server: Server, web_system: System, tmp_path: Path, scheme: Any, size: str
) -> None:
    name = f"holiday-{scheme}-{size}"
    for n, (said, answered) in enumerate(TALK):
        web_system.service.remember(Scope(user_id=USER, conversation_id=name), make_turn(f"{name}-{n}", said, answered))
    web_system.client.reply(USER, name, "final:1 Book the train", idempotency_key=f"{name}-dead")
    width, height = SIZES[size]
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
    page = context.new_page()
    page.goto(f"{server.url}/#/chat")
    page.get_by_label("Conversation", exact=True).first.fill(name)
    page.get_by_role("button", name="Open").click()
    say(page, "Which tea does my sister like?")
    ends(page, "Which tea")
    expect(turn(page, "Which tea").locator(".recalled li").first).to_be_visible()
    look(page, "chat", scheme, size, tmp_path)
    page.get_by_role("link", name="Memory").click()
    expect(page.locator("#timeline li").first).to_be_visible()
    look(page, "memory", scheme, size, tmp_path)
    unlock(page)
    expect(page.locator("#checks")).to_contain_text("Redis")
    expect(page.locator("#failed tr").first).to_be_visible()
    line = page.locator("#charts polyline").first
    wait_for(lambda: len((line.get_attribute("points") or "").split()) > 1, "the charts to have lines")
    web_system.client.reply(USER, f"{name}-2", "hello").wait_persisted()
    wait_for(lambda: len((line.get_attribute("points") or "").split()) > 3, "the charts to have more")
    look(page, "operations", scheme, size, tmp_path)
    context.close()
    web_system.client.drop_failed(USER, name, f"{name}-dead")


TALK = (
    ("We spent June in Lisbon, it was hot", "Lisbon in June sounds warm. Did you see the river?"),
    ("My sister likes green tea, nothing else", "Noted: green tea for your sister."),
    ("I fly back on the 12th of August", "Then you return on 12 August."),
)


def look(page: Page, view: str, scheme: str, size: str, folder: Path) -> None:
    """No violation, nothing wider than the screen; and a picture."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    folder = Path(os.environ.get("SCREENSHOTS", folder))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{view}-{scheme}-{size}.png")


def test_the_keyboard_is_enough(page: Page) -> None:
    page.get_by_label("Message").focus()
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    ends(page, "second line", "in long-term memory")
    wait_for(lambda: page.evaluate("document.activeElement.id") == "text", "the focus to be back")
