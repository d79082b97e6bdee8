"""Tools, resources and prompts, called from the page."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect


def run(page: Any) -> Any:
    page.get_by_role("button", name="Run Ctrl ↵").click()
    return page.get_by_role("region", name="Run").first


def test_form_is_generated_from_the_schema(tried: Any) -> None:
    tried.go("tools", "trip")
    page = tried.page
    page.get_by_label("who").fill("Anna")
    page.get_by_label("days").fill("5")
    page.get_by_label("class").select_option("first")
    page.get_by_role("button", name="Add stops").click()
    page.get_by_role("button", name="Add item").click()
    page.get_by_label("stops 1").fill("Bern")
    page.get_by_role("button", name="Add extras").click()
    page.get_by_label("dog").check()
    page.get_by_label("by", exact=True).select_option("Train")
    page.get_by_label("line").fill("S1")
    page.get_by_role("button", name="Add Person").click()
    page.get_by_label("name", exact=True).fill("Ben")
    page.get_by_role("button", name="Add Person").click()  # a friend, who has friends
    page.get_by_label("name", exact=True).nth(1).fill("Cleo")
    page.get_by_role("button", name="Add labels").click()
    page.get_by_role("button", name="Add property").click()
    page.get_by_label("Property name").fill("trip")
    page.get_by_label("value", exact=True).fill("long")
    sent: list[Any] = []
    page.on("request", lambda request: request.method == "POST" and sent.append(request.post_data_json))
    result = run(page)
    expect(result.get_by_text("done")).to_be_visible()
    (call,) = [item for item in sent if item["params"]["name"] == "call_tool"]
    assert call["params"]["arguments"]["arguments"] == {
        "who": "Anna",
        "days": 5,
        "class": "first",
        "quiet": True,
        "stops": ["Bern"],
        "extras": ["dog"],
        "by": {"line": "S1"},
        "party": {"name": "Ben", "friend": {"name": "Cleo"}},
        "labels": {"trip": "long"},
    }
    expect(result.get_by_role("tree")).to_contain_text("Cleo")


def test_invalid_field_is_reported_before_the_call_is_sent(tried: Any) -> None:
    tried.go("tools", "trip")
    page = tried.page
    # An empty text that was never edited would be missing instead.
    page.get_by_label("who").fill("Ann")
    page.get_by_label("who").fill("")
    page.get_by_label("days").fill("90")
    page.get_by_role("button", name="Run Ctrl ↵").click()
    expect(page.get_by_label("who")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("Must be at most 30")).to_be_visible()
    expect(page.get_by_text("Must not be empty")).to_be_visible()
    before = page.get_by_role("region", name="Run").count()
    # A person who tests a server can mean it.
    page.get_by_role("button", name="Send anyway").click()
    expect(page.get_by_role("region", name="Run").first.get_by_text("failed")).to_be_visible()
    assert page.get_by_role("region", name="Run").count() == before + 1


def test_json_is_the_way_out_and_back(tried: Any) -> None:
    tried.go("tools", "add")
    page = tried.page
    page.get_by_label("a", exact=True).fill("2")
    page.get_by_role("button", name="JSON").click()
    raw = page.get_by_label("Arguments as JSON")
    expect(raw).to_have_value('{\n  "a": 2\n}')
    raw.fill("{no")
    page.get_by_role("button", name="Form").click()
    expect(page.get_by_text("Invalid JSON object")).to_be_visible()
    raw.fill('{"a": 20, "b": 22}')
    page.get_by_role("button", name="Form").click()
    expect(page.get_by_label("b", exact=True)).to_have_value("22")
    expect(run(page)).to_contain_text("42")


def test_list_of_objects_is_a_table_that_sorts(tried: Any) -> None:
    tried.go("tools", "cities")
    result = run(tried.page)
    table = result.get_by_role("table")
    expect(table.get_by_role("row")).to_have_count(4)
    table.get_by_role("button", name="people").click()
    expect(table.get_by_role("row").nth(1)).to_contain_text("City 2")


def test_progress_and_log_lines_are_shown_and_call_can_be_cancelled(tried: Any) -> None:
    tried.go("tools", "count_slowly")
    result = run(tried.page)
    expect(result.get_by_role("log")).to_contain_text("counted 3")
    expect(result).to_contain_text("counted to 3")
    tried.go("tools", "wait_for_ever")
    result = run(tried.page)
    expect(result.get_by_role("log")).to_contain_text("waiting")
    expect(result.get_by_role("progressbar")).to_be_visible()
    result.get_by_role("button", name="Cancel").click()
    expect(result).to_contain_text("Cancelled.")


def test_elicitation_is_answered_in_the_form(tried: Any) -> None:
    page = tried.page
    tried.go("tools", "book")
    page.get_by_label("city").fill("Bern")
    result = run(page)
    question = page.get_by_role("region", name="Elicitation request")
    expect(question).to_contain_text("Elicitation request from book")
    expect(question).to_contain_text("Which seat to Bern?")
    question.get_by_role("combobox").select_option("aisle")
    question.get_by_role("button", name="Submit").click()
    expect(result).to_contain_text("accept: aisle")
    result.get_by_role("button", name="Run again").click()
    page.get_by_role("region", name="Elicitation request").get_by_role("button", name="Decline").click()
    expect(page.get_by_role("region", name="Run").first).to_contain_text("decline")
    tried.go("tools", "rhyme")
    page.get_by_label("word").fill("house")
    result = run(page)
    question = page.get_by_role("region", name="Sampling request")
    expect(question).to_contain_text("What rhymes with house?")
    question.get_by_label("Model response").fill("mouse")
    question.get_by_role("button", name="Submit").click()
    expect(result).to_contain_text("mouse")
    tried.go("tools", "folders")
    result = run(page)
    question = page.get_by_role("region", name="Roots request")
    question.get_by_role("textbox").fill("file:///home/anna/app")
    question.get_by_role("button", name="Submit").click()
    expect(result).to_contain_text("file:///home/anna/app")
    expect(run(page)).to_contain_text("file:///home/anna/app")  # it is not asked twice


def test_pictures_sounds_and_rejections(tried: Any) -> None:
    page = tried.page
    tried.go("tools", "picture")
    expect(run(page).get_by_role("img")).to_have_js_property("naturalWidth", 1)
    tried.go("tools", "sound")
    expect(run(page).locator("audio")).to_have_js_property("error", None)
    tried.go("tools", "refuse")
    result = run(page)
    expect(result.get_by_text("failed")).to_be_visible()
    expect(result).to_contain_text("No, because.")


def test_resources_are_read_and_templates_completed(tried: Any) -> None:
    page = tried.page
    page.get_by_role("link", name="Resources").click()
    page.get_by_role("option", name="readme").click()
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.get_by_role("region", name="Run")).to_contain_text("Read me.")
    tried.go("resources", "varied://cities/{name}")
    page.get_by_label("name").press_sequentially("Ber")
    expect(page.locator("datalist option")).to_have_count(2)
    page.get_by_label("name").fill("Bern")
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.get_by_role("region", name="Run").get_by_role("tree")).to_contain_text("Bern")


def test_prompts_give_their_messages(tried: Any) -> None:
    page = tried.page
    tried.go("prompts", "greet")
    page.get_by_role("button", name="Get prompt").click()
    expect(page.get_by_label("name")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("name").fill("Anna")
    page.get_by_role("button", name="Get prompt").click()
    expect(page.get_by_role("region", name="Run")).to_contain_text("Greet Anna in a warm tone.")


def test_call_is_saved_opened_again_and_copied(tried: Any) -> None:
    page = tried.page
    tried.go("tools", "add")
    page.get_by_label("a", exact=True).fill("40")
    page.get_by_label("b", exact=True).fill("2")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_label("Name").fill("forty-two")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    page.get_by_label("Copy call as").select_option("portico call")
    expect(page.get_by_text("Call copied")).to_be_visible()
    assert "portico call" in page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("link", name="Saved calls").click()
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_label("a", exact=True)).to_have_value("40")
    expect(run(page)).to_contain_text("42")


def test_everything_is_reached_by_the_keyboard_alone(tried: Any) -> None:
    page = tried.page
    page.keyboard.press("Control+k")
    page.keyboard.type("add")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="add")).to_be_focused()
    for _ in range(20):
        page.keyboard.press("Tab")
        if (
            page.evaluate("document.activeElement.matches('input') && document.activeElement.labels[0].textContent")
            == "a"
        ):
            break
    page.keyboard.type("19")
    page.keyboard.press("Tab")
    page.keyboard.type("23")
    # Runs of this tool stay on the page, also those that other tests have made: this one is new, and it is one.
    runs = page.get_by_role("region", name="Run")
    before = runs.count()
    page.keyboard.press("Control+Enter")
    expect(runs).to_have_count(before + 1)
    expect(runs.first.get_by_role("tree")).to_contain_text("42")
    page.keyboard.press("Control+k")
    page.keyboard.type("prompts")
    page.keyboard.press("Enter")
    expect(page.get_by_role("listbox", name="Prompts")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("gree")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="greet")).to_be_focused()


def test_required_text_that_was_not_edited_is_missing(tried: Any) -> None:
    tried.go("tools", "trip")
    page = tried.page
    page.get_by_role("button", name="Run Ctrl ↵").click()
    expect(page.get_by_label("who")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("Is required").first).to_be_visible()


def test_the_message_about_a_mistake_goes_when_the_corrected_call_is_done(tried: Any) -> None:
    tried.go("tools", "add")
    page = tried.page
    page.get_by_role("button", name="Run Ctrl ↵").click()
    mistake = page.locator("#said .note.bad")
    expect(mistake).to_contain_text("schema violation")
    # It covers neither the form nor the results.
    results = page.locator("#main").bounding_box()
    note = mistake.bounding_box()
    assert results and note and note["x"] + note["width"] <= results["x"]
    page.get_by_label("a", exact=True).fill("1")
    page.get_by_label("b", exact=True).fill("2")
    page.get_by_role("button", name="Run Ctrl ↵").click()
    expect(page.get_by_role("region", name="Run").first.get_by_text("done")).to_be_visible()
    expect(mistake).to_have_count(0)


def test_the_run_button_stays_at_the_bottom_of_a_long_form(tried: Any) -> None:
    page = tried.page
    page.set_viewport_size({"width": 1280, "height": 400})
    tried.go("tools", "trip")
    run = page.get_by_role("button", name="Run Ctrl ↵")
    expect(run).to_be_visible()
    bar = page.locator(".actions")
    box = bar.bounding_box()
    assert box and 398 <= box["y"] + box["height"] <= 402
    # Fields do not show through it.
    assert bar.evaluate("one => getComputedStyle(one).backgroundColor") not in ("transparent", "rgba(0, 0, 0, 0)")
    page.set_viewport_size({"width": 1280, "height": 800})


def test_first_steps_are_shown_until_they_are_closed(tried: Any) -> None:
    tried.go("tools")
    page = tried.page
    steps = page.get_by_role("region", name="First steps")
    expect(steps.get_by_role("listitem").first).to_contain_text("Select a tool")
    steps.get_by_role("button", name="Close").click()
    page.reload()
    expect(page.get_by_role("searchbox", name="Filter tools")).to_be_visible()
    expect(page.get_by_text("Protocol version")).to_be_visible()
    expect(steps).to_have_count(0)
