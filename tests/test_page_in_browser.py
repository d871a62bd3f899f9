"""The pages of runs and of audits in a real browser: no complaint, foreign text stays text, keyboard and phone work."""

import base64
import csv
import json
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit_folders import Audit, estimate, findings, image_audit, score_columns, text_audit
from debiaser.report.audit_page import as_json, table_order, write_audit_page
from debiaser.report.figures import break_even
from debiaser.report.run_page import write_page
from debiaser.report.runs import find_runs
from test_report import new_result, write_run

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='hacked=2'>\"'\n../../é😀</script>&amp; {{ 7*7 }} $x$"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars"),
)
PAGES = ["run", "image", "text"]
ENTER, SPACE, ESCAPE, RIGHT, DOWN, UP = "\ue007\ue00d\ue00c\ue014\ue015\ue013"  # WebDriver's keys


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: this test did not run")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no chromium with chromedriver on PATH: this test did not run")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The addresses of pages: of runs of two settings whose names want to be code, and of audits."""
    folder = tmp_path_factory.mktemp("pages")
    names = {"classes": [HOSTILE, *"123456789"], "bias_name": HOSTILE, "environment": {"commit": HOSTILE}}
    for rho in (0.01, 0.05):
        for method, value in (("vanilla", 48.0), ("pgd", 75.0)):
            result = new_result(method, value, rho=rho, key=f"{method}{rho}", recipe=HOSTILE, **names)
            result["spec"]["fields"] = {HOSTILE: HOSTILE}
            run = write_run(folder / f"{method}{rho}", result)
            (run / "history.csv").write_text((run / "history.csv").read_text().replace("debiased", "<b>$evil$</b>"))
    made = {"run": write_page(find_runs(folder), folder / "run.html", title=HOSTILE)}
    made |= {"image": write_audit_page(folder / "image.html", **image_audit())}
    made |= {"text": write_audit_page(folder / "text.html", **text_audit())}
    return {name: path.as_uri() for name, path in made.items()}


def show(browser: Any, address: str, width: int = 1280, scheme: str = "light") -> None:
    """Open a page as if for the first time."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(address)
    browser.execute_script("localStorage.clear()")
    browser.get(address)
    browser.get_log("browser")
    browser.refresh()


def run(browser: Any, script: str, *given: Any) -> Any:
    return browser.execute_script(script, *given)


def css(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def press(browser: Any, *keys: str) -> None:
    browser.switch_to.active_element.send_keys(*keys)


def unfold(browser: Any) -> None:
    run(browser, "document.querySelectorAll('details').forEach(one => one.open = true)")


def table_column(browser: Any, number: int) -> list[str]:
    """What stands in one column of the rows of the table that are in the page."""
    rows = "document.querySelectorAll('#window tr[data-place]')"
    return run(browser, f"return [...{rows}].map(row => row.cells[arguments[0] - 1].textContent)", number)


def saved(browser: Any, folder: Path) -> list[list[str]]:
    """The rows of the CSV file that the page hands out."""
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    run(browser, "document.getElementById('save').click()")
    deadline = time.monotonic() + 10
    while not (folder / "marks.csv").exists():
        assert time.monotonic() < deadline, "nothing was downloaded"
        time.sleep(0.05)
    with (folder / "marks.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream))


# --- every page -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PAGES)
def test_opens_without_a_complaint_and_loads_only_what_is_its_own(
    browser: Any, pages: dict[str, str], kind: str
) -> None:
    show(browser, pages[kind])
    assert browser.get_log("browser") == []
    sizes = browser.execute_async_script(
        "const done = arguments[0], all = [...document.images];"
        "Promise.all(all.map(i => i.decode().catch(() => 0))).then(() => done(all.map(i => i.naturalWidth)))"
    )
    assert 0 not in sizes and (len(sizes) > 200) == (kind != "text")
    # The policy holds the line should an escape ever be forgotten.
    for tag, code in (("script", "window.hacked = 3"), ("style", "#main { display: none }")):
        add = f"const s = document.createElement('{tag}'); s.textContent = '{code}'; document.body.append(s)"
        run(browser, add if (tag, kind) != ("style", "run") else "")
    image = '<img src="http://127.0.0.1:9/x.png" onerror="hacked = 4">'
    run(browser, f"document.body.insertAdjacentHTML('beforeend', '{image}')")
    assert run(browser, "return window.hacked") is None
    assert run(browser, "return getComputedStyle(document.getElementById('main')).display") == "block"
    assert sum("Content Security Policy" in entry["message"] for entry in browser.get_log("browser")) >= 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", PAGES)
def test_phone_never_scrolls_sideways(browser: Any, pages: dict[str, str], kind: str, scheme: str) -> None:
    show(browser, pages[kind], 360, scheme)
    unfold(browser)
    assert run(browser, "return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert run(browser, "return window.innerWidth") == 360
    ink = {"light": "rgb(29, 33, 41)", "dark": "rgb(231, 233, 237)"}[scheme]
    assert run(browser, "return getComputedStyle(document.body).color") == ink
    assert run(browser, "return getComputedStyle(document.querySelector('svg.figure text')).fill") == ink
    if kind != "run":
        run(browser, "document.querySelector('.sample').click()")
        box = "const d = document.getElementById('enlarged').getBoundingClientRect(); return [d.left, d.right]"
        left, right = run(browser, box)
        assert left >= 0 and right <= 360
    assert browser.get_log("browser") == []


# --- the page of runs -----------------------------------------------------------------------------------------------


def test_hostile_names_execute_nothing(browser: Any, pages: dict[str, str]) -> None:
    show(browser, pages["run"])
    assert browser.title == " ".join(HOSTILE.split()) and run(browser, "return window.hacked") is None
    assert run(browser, "return document.scripts.length") == 1
    assert run(browser, "return document.querySelector('.gallery-row h3').textContent") == HOSTILE
    assert run(browser, "return document.body.textContent").count(HOSTILE) > 10
    names = "return [...document.querySelectorAll('*')].flatMap(one => one.getAttributeNames())"
    assert not [name for name in run(browser, names) if name.startswith("on")]


def test_details_open_and_filters_work_by_keyboard(browser: Any, pages: dict[str, str]) -> None:
    show(browser, pages["run"])
    (details,) = css(browser, "#section1")
    assert details.get_attribute("open") is None
    css(browser, "#section1 > summary")[0].send_keys(ENTER)
    assert details.get_attribute("open") is not None
    (button,), cards = css(browser, "#section0 [data-show=follow]"), css(browser, "#section0 .card")
    assert all(card.is_displayed() for card in cards)
    button.send_keys(SPACE)
    assert button.get_attribute("aria-pressed") == "true" and sum(card.is_displayed() for card in cards) == 2
    show(browser, pages["run"] + "#section1")
    assert run(browser, "return document.getElementById('section1').open"), "as a link of the overview asks"


# --- the page of an audit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["image", "text"])
def test_every_part_is_there(browser: Any, pages: dict[str, str], kind: str) -> None:
    show(browser, pages[kind])
    parts = ["next", "repair", "views", "galleries", "looks", "suspects", "kinds", "to-mark", "scores", "table"]
    parts += ["left-out", "how", "known-groups", "slices", *(["mislabelled", "saw"] if kind == "image" else [])]
    assert [part for part in parts if not css(browser, f"section h2#{part}")] == []
    said = css(browser, "main")[0].text
    for sentence in (
        "A shortcut was found: The model follows the colour cast in 30%",
        "62% right, chance 10%",
        "“north” never goes with label “3”",
        "30% of swaps followed, chance 6%",
        "Difference on all held-out samples: +37.5 [31.0, 44.0] points (95% interval, p = 0.001, 120 units).",
    ):
        assert sentence in said
    assert said.count("+37.5 [31.0, 44.0]") == 2, "in the sentence and in the table"
    told = [each.text for each in css(browser, ".strip.of-texts blockquote")][:3]
    assert told == ([] if kind == "image" else ["a dreary film", "a spiffing film", "a spiffing film"])


def test_the_proof_is_drawn(browser: Any, pages: dict[str, str]) -> None:
    """Before and after, break-even, the forest, and sixty samples to look at."""
    show(browser, pages["image"])
    first = css(browser, "#views ~ .measures .measure")[0].text.replace("\n", " ")
    assert "Before: 30% of swaps" in first and "After: 8%" in first
    drawn = {"#to-mark-list .sample": 60}
    drawn |= {"[id^=price-course]": 2, "#price-even-band": 1, "#suspects ~ figure [id^=forest-dot]": 2}
    assert {selector: len(css(browser, selector)) for selector in drawn} == drawn
    assert "chosen" in css(browser, ".results .flag")[0].text


def test_lines_of_the_price_cross_at_the_break_even_share() -> None:
    """Gain 30 on samples against, cost 1.5 on the others: level at 1.5 / 31.5 of the cases."""
    even = {"value": 100 * 1.5 / 31.5, "low": 3.0, "high": 7.0}
    sides = {"before": {"follow": 97.0, "against": 40.0}, "after": {"follow": 95.5, "against": 70.0}}
    drawn = break_even(**sides, even=even, share={"low": 0.0, "high": 0.012}, alt="price")
    found = re.findall(r'id="price-([\w-]+)"><path d="M (\S+) (\S+) \sL (\S+) (\S+)', drawn)
    lines = {name: [float(each) for each in ends] for name, *ends in found}
    (x1, a1, x2, a2), (_, b1, _, b2) = lines["course-aligned"], lines["course-right"]
    crossing = x1 + (x2 - x1) * (b1 - a1) / ((b1 - a1) + (a2 - b2))
    assert crossing == pytest.approx(lines["even-line"][0], abs=0.1)


def test_galleries_hold_what_their_heads_say(browser: Any, pages: dict[str, str]) -> None:
    show(browser, pages["image"])
    sides = run(
        browser,
        "return [...document.querySelectorAll('.gallery-row')].map(row => [row.querySelector('h3').textContent,"
        " ...[...row.querySelectorAll('.thumbnails')].map(list => [...list.children].map(li => li.firstChild.title))])",
    )
    assert [name for name, *_ in sides] == [str(k) for k in range(10)]
    for name, typical, against in sides:
        assert all(f"labelled {name}, biased model says {name}, follows the shortcut" in words for words in typical)
        assert all(words.startswith(f"labelled {name},") and f"says {name}," not in words for words in against)
        assert len(typical) == 10 and against


def test_classes_and_groups_are_a_table_whose_worst_cell_is_marked(browser: Any, pages: dict[str, str]) -> None:
    show(browser, pages["image"])
    rows = [
        [cell.text.split("\n") for cell in row.find_elements("css selector", "td")]
        for row in css(browser, ".cells tbody tr")
    ]
    assert rows[0][0] == ["93%", "between 88% and 98%", "biased model 60%", "90 images"]
    assert rows[1] == [["75%", "too few to judge", "biased model 60%", "4 images"], ["none"]]
    (worst,) = css(browser, ".cells .worst")
    assert worst.text.startswith("31%") and css(browser, ".cells td")[1] == worst
    assert "“0” where colour is “blue”. A plain model gets 31% of these 12 images right" in css(browser, "main")[0].text


@pytest.mark.parametrize("kind", ["image", "text"])
def test_a_slice_is_drawn_and_tagged_as_a_whole(browser: Any, pages: dict[str, str], kind: str) -> None:
    show(browser, pages[kind])
    slices = css(browser, "#slice-list .slice")
    assert len(slices) == 4 and all(one.find_elements("css selector", ".sample") for one in slices)
    samples = slices[1].find_elements("css selector", ".sample")
    names = [one.get_attribute("title").split(", ")[-1] for one in samples]
    (field,) = slices[1].find_elements("css selector", "input")
    field.send_keys(ENTER)
    assert slices[1].find_element("css selector", "output").text == "Type a word first."
    field.send_keys("c", ENTER)
    assert "has a key of its own" in slices[1].find_element("css selector", "output").text
    field.clear()
    field.send_keys("grass, wet", ENTER)
    assert slices[1].find_element("css selector", "output").text == f"{len(samples)} tagged"
    assert [one.get_attribute("data-mark") for one in samples] == ["grass wet"] * len(samples)
    assert css(browser, "#counter")[0].text == f"{len(samples)} marked: {len(samples)} grass wet"
    marked = "return [...new Set([...document.querySelectorAll('.sample[data-mark]')].map(one => one.title))]"
    assert sorted(name.split(", ")[-1] for name in run(browser, marked)) == sorted(names), "and no other"
    assert browser.get_log("browser") == []


def test_the_map_shows_what_lies_under_the_pointer(browser: Any, pages: dict[str, str]) -> None:
    show(browser, pages["image"])
    data = run(browser, "return data.map")
    assert len(css(browser, "#map circle")) == len(data["x"]) == 300
    assert len(css(browser, "#map circle.ring")) == sum(data["wrong"]) > 0
    move = (
        "const svg = document.querySelector('#map svg'), dot = svg.querySelector('.ring'); svg.scrollIntoView();"
        "const box = dot.getBoundingClientRect(), at = {clientX: box.left + 3, clientY: box.top + 3, bubbles: true};"
        "svg.dispatchEvent(new PointerEvent(arguments[0], at)); return document.querySelector('.map-tip').textContent"
    )
    told = run(browser, move, "pointermove")
    number = data["wrong"].index(1)
    assert told == run(browser, "return describe(arguments[0])", data["place"][number])
    assert css(browser, ".map-tip img") and len(css(browser, "#map .here")) == 1
    css(browser, "#map-legend button")[2].click()
    assert len(css(browser, "#map .dim")) == sum(label != 2 for label in data["label"])
    css(browser, "#map-legend button")[2].click()
    assert not css(browser, "#map .dim")
    run(browser, move, "click")
    assert css(browser, "#dialog-title")[0].text == told.split(", ")[-1] and browser.get_log("browser") == []


def test_sorts_by_any_column_and_draws_only_what_is_in_view(browser: Any, pages: dict[str, str]) -> None:
    show(browser, pages["image"])
    assert [int(rank) for rank in table_column(browser, 1)[:5]] == [1, 2, 3, 4, 5]
    head = css(browser, "#window th.col-score")[0]
    for expected in ("descending", "ascending"):
        run(browser, "arguments[0].firstChild.click()", head)
        scores = [float(score) for score in table_column(browser, 6)]
        assert head.get_attribute("aria-sort") == expected
        assert scores == sorted(scores, reverse=expected == "descending")
    assert scores[0] < 0.001 and len(scores) < 40
    run(browser, "const w = document.getElementById('window'); w.scrollTop = w.scrollHeight")
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert table_column(browser, 1)[-1] == "–", "what is unknown comes last either way"
    assert len(css(browser, "#window tr[data-place]")) < 40


def test_filters_by_kind_class_and_text(browser: Any, pages: dict[str, str]) -> None:
    show(browser, pages["image"])
    (told,), (search,) = css(browser, "#matches"), css(browser, "#search")
    assert told.text == "630 of 630"
    choose = (
        "const one = document.getElementById(arguments[0]);"
        "one.value = [...one.options].find(option => option.text === arguments[1]).value;"
        "one.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    run(browser, choose, "by-kind", "goes against it")
    assert set(table_column(browser, 5)) == {"goes against it"}
    run(browser, choose, "by-class", "3")
    assert set(table_column(browser, 3)) == {"3"}
    ids = table_column(browser, 2)
    search.send_keys(ids[-1])
    assert table_column(browser, 2) == ids[-1:] and told.text == "1 of 630"
    search.send_keys("nothing like this")
    assert told.text == "0 of 630" and browser.get_log("browser") == []


def test_reviews_by_keys_saves_and_remembers(browser: Any, pages: dict[str, str], tmp_path: Path) -> None:
    show(browser, pages["image"])
    assert not css(browser, "#save")[0].is_enabled() and not css(browser, "#to-marks")[0].is_displayed()
    first, second, third = css(browser, ".gallery .sample")[:3]
    names = [one.get_attribute("title").split(", ")[-1] for one in (first, second, third)]
    run(browser, "arguments[0].focus()", first)
    press(browser, "a", "j", "c", RIGHT, "m")
    assert browser.switch_to.active_element == third
    press(browser, "u", "k", "m")
    assert css(browser, "#counter")[0].text == "2 marked: 1 follows the shortcut, 1 mislabelled"
    run(browser, "document.getElementById('window').focus()")
    press(browser, DOWN, "j", UP, "c")
    assert css(browser, "#window tr.current")[0].get_attribute("data-mark") == "conflicting"
    marked = [(names[0], "aligned"), (names[1], "mislabelled"), (table_column(browser, 2)[1], "conflicting")]
    at = "const {id, label, content} = data.rows, at = id.indexOf(arguments[0]);"
    at += "return [data.names[label[at]], content[at]]"
    expected = [[name, mark, *run(browser, at, name)] for name, mark in marked]
    assert saved(browser, tmp_path) == [["id", "mark", "label", "content"], *expected]
    assert css(browser, "#next-marks")[0].text == "debiaser debias scans/clinic --marks marks.csv"
    browser.refresh()
    assert css(browser, "#counter")[0].text == "3 marked: 1 follows the shortcut, 1 goes against it, 1 mislabelled"
    assert css(browser, ".gallery .sample")[1].get_attribute("data-mark") == "mislabelled"
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("kind", ["image", "text"])
def test_enlarges_by_key_and_click_steps_and_closes(browser: Any, pages: dict[str, str], kind: str) -> None:
    show(browser, pages[kind])
    (dialog,), (title,) = css(browser, "#enlarged"), css(browser, "#dialog-title")
    first, second = css(browser, "#look-list .sample")[:2]
    run(browser, "arguments[0].focus()", first)
    press(browser, ENTER)
    assert dialog.is_displayed() and title.text == first.get_attribute("title").split(", ")[-1]
    press(browser, RIGHT, "c")
    assert title.text == second.get_attribute("title").split(", ")[-1]
    assert css(browser, "#enlarged [data-mark=conflicting]")[0].get_attribute("aria-pressed") == "true"
    shown = css(browser, "#dialog-body " + ("img.heat-debiased" if kind == "image" else ".words-debiased"))[0]
    assert not shown.is_displayed()
    css(browser, "#dialog-look [data-look=debiased]")[0].click()
    assert shown.is_displayed()
    press(browser, ESCAPE)
    assert not dialog.is_displayed() and browser.switch_to.active_element == first
    assert second.get_attribute("data-mark") == "conflicting"
    row = css(browser, "#window tr[data-place]")[0]
    run(browser, "arguments[0].scrollIntoView({block: 'center'})", row)
    row.click()
    assert dialog.is_displayed() and browser.get_log("browser") == []


def hostile_audit(kind: str) -> Audit:
    names = [HOSTILE, *"123456789"]
    audit = image_audit(300, names, HOSTILE) if kind == "image" else text_audit(names=(HOSTILE, "good"), extra=HOSTILE)
    told = audit["findings"]
    told |= {"source": HOSTILE, "examined": HOSTILE, "reasons": [HOSTILE] * 2, "notes": [HOSTILE]}
    told |= {"choices": {HOSTILE: HOSTILE}}
    told |= {"next": {"sentences": [HOSTILE], "snippet": HOSTILE, "marks": HOSTILE, "again": HOSTILE}}
    told["marks"] = {"counts": {}, "notes": [HOSTILE], "why_none": ""}
    told["unreadable"] = [{"id": HOSTILE, "reason": HOSTILE}]
    told["duplicates"] = [{"ids": [HOSTILE, HOSTILE + "2"], "across": True}]
    first, view = told["suspects"][0], told["views"][0]
    told["suspects"] = [{**first, "column": HOSTILE, "values": [{"value": HOSTILE, "n": 2, "error_rate": 50.0}]}]
    told["views"] = [{**view, "title": HOSTILE}]
    cell = {**told["groups"]["cells"][0], "class": HOSTILE, "group": HOSTILE}
    told["groups"] = {"column": HOSTILE, "cells": [cell], "worst": cell, "association": {"sentence": HOSTILE}}
    told["repair"] |= {"sentence": HOSTILE, "before": {HOSTILE: told["repair"]["before"]["vanilla"]}}
    return audit


@pytest.mark.parametrize("kind", ["image", "text"])
def test_hostile_names_and_texts_stay_text(browser: Any, kind: str, tmp_path: Path) -> None:
    show(browser, write_audit_page(tmp_path / "report.html", **hostile_audit(kind)).as_uri())
    unfold(browser)
    assert run(browser, "return document.scripts.length") == 2
    assert run(browser, "return document.querySelectorAll('img:not([src^=\"data:image/webp\"])').length") == 0
    names = "return [...document.querySelectorAll('.gallery-row h3')].map(one => one.textContent)"
    assert HOSTILE in run(browser, names)
    for selector in ("#how ~ .note, .note", "#snippet", "#next-marks"):
        assert run(browser, "return document.querySelector(arguments[0]).textContent", selector) == HOSTILE
    if kind == "text":
        assert run(browser, "return document.querySelector('.gallery .excerpt').textContent").endswith(HOSTILE)
    run(browser, "arguments[0].focus()", css(browser, ".gallery .sample")[0])
    press(browser, "c")
    rows = saved(browser, tmp_path)
    assert rows[1][0].startswith(HOSTILE if kind == "image" else "review ") and rows[1][1] == "conflicting"
    run(browser, "document.querySelector('.sample').click()")
    assert run(browser, "return window.hacked") is None and browser.get_log("browser") == []


@pytest.mark.long
def test_ten_thousand_images_stay_under_five_megabytes_and_quick(browser: Any, tmp_path: Path) -> None:
    n, kept, names = 100_000, 500, [f"class {k}" for k in range(10)]
    random = np.random.default_rng(0)
    label = random.integers(0, 10, n)
    said = np.where(random.random(n) < 0.9, label, random.integers(0, 10, n))
    ids = [f"{names[k]}/some folder/image_{row:06}.jpg" for row, k in enumerate(label)]
    columns = score_columns(ids, names, label, said)
    ranked = np.argsort(columns["rank"])
    images = random.integers(0, 256, (kept, 40, 40, 3)).astype(np.uint8).repeat(4, axis=1).repeat(4, axis=2)
    shown = zip(np.r_[ranked[: kept // 2], ranked[-kept // 2 :]].tolist(), images, strict=True)
    odds = {"easy": np.full(10, 0.1), "plain": np.full(10, 0.1)}
    samples = {row: {"image": image, **odds} for row, image in shown}  # harder to press than photos
    told = findings("image", names, label, label != said, np.asarray(columns["score"])) | {"unreadable": []}
    told["to_mark"] = [{"place": int(row), "why": "score"} for row in ranked[:60]]
    for row in ranked[:60].tolist():
        samples[row]["image"] = samples[row]["image"].repeat(2, axis=0).repeat(2, axis=1)
    page = write_audit_page(tmp_path / "report.html", told, columns, samples, {})
    assert 1e6 < page.stat().st_size < 5e6
    show(browser, page.as_uri())
    assert "The 10,000 highest-ranked of 100,000 images" in css(browser, "main")[0].text
    assert css(browser, "#matches")[0].text == "10,000 of 10,000" and len(css(browser, ".gallery .sample")) == 200
    sort = "document.querySelector('#window th.col-score button').click()"
    assert run(browser, f"const start = performance.now(); {sort}; return performance.now() - start") < 1000
    assert browser.get_log("browser") == []


# --- the file of an audit -------------------------------------------------------------------------------------------


def test_redacted_paths_leave_no_name(tmp_path: Path, browser: Any) -> None:
    audit = image_audit(prefix="anna-mueller_")
    told = audit["findings"]
    told["notes"] = ["17 of them were slow, first anna-mueller_3/17.png", "see /data/private/x.txt"]
    told["unreadable"] = [{"id": "sub/ottokar.png", "reason": "cannot identify image file 'ottokar.png'"}]
    values, cell = [{"value": "ottokar", "n": 3, "error_rate": 10.0}], {"value": "ottokar", "label": "1"}
    column = {"column": "file name token", "values": values, "empty": [cell]}
    told["suspects"] = [*told["suspects"], {**told["suspects"][0], **column}]
    told["reasons"] = ["A suspect column has an empty cell: file name token 'ottokar' never goes with label '1'."]
    cells = [{**told["groups"]["cells"][0], "group": "leonie"}]
    told["groups"] = {**told["groups"], "column": "folder", "cells": cells}
    full = write_audit_page(tmp_path / "full.html", **audit).read_text(encoding="utf-8")
    page = write_audit_page(tmp_path / "report.html", **audit, redact=frozenset({"paths"}))
    text = page.read_text(encoding="utf-8")
    for name in ("anna-mueller", "ottokar", "clinic", "/data/private", "leonie"):
        assert name in full and name not in text
    assert "17 of them were slow" in text and "never goes with label" in text
    show(browser, page.as_uri())
    assert re.fullmatch(r"sample \d+", table_column(browser, 2)[0]) and css(browser, ".gallery .sample")
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("kind", ["image", "text"])
def test_redacted_images_leave_no_image_and_no_text(tmp_path: Path, browser: Any, kind: str) -> None:
    audit = image_audit() if kind == "image" else text_audit(extra="unmistakable")
    full = write_audit_page(tmp_path / "full.html", **audit).read_bytes()
    page = write_audit_page(tmp_path / "report.html", **audit, redact=frozenset({"images"}))
    word = b"data:image" if kind == "image" else b"unmistakable"
    assert word in full and word not in page.read_bytes()
    show(browser, page.as_uri())
    assert css(browser, "#window tr[data-place]") and not css(browser, "img, .sample")
    assert "left out of this page (--redact images)" in css(browser, "header")[0].text
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("kind", ["image", "text"])
def test_it_is_printed_on_few_sheets_none_of_them_blank(browser: Any, pages: dict[str, str], kind: str) -> None:
    show(browser, pages[kind])
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12, "no room for rows that are not drawn"


def test_the_verdict_shows_swaps_and_three_reasons_and_folds_the_rest(tmp_path: Path) -> None:
    reasons = ["The model follows the Colour cast in 30% of swaps.", *(f"Reason {number}." for number in range(1, 9))]
    found = image_audit(200, reasons=reasons, conflicting_share=estimate(None, 0.0, 0.0))
    page = write_audit_page(tmp_path / "report.html", **found).read_text()
    box = page[page.index('<div class="verdict found">') : page.index('<div class="tiles">')]
    assert (
        box.index('data-view="colour"') < box.index("Reason 2.") < box.index("6 more reasons") < box.index("Reason 3.")
    )
    assert '<p class="big">0%</p>' in page and "0%–0%" not in page and "between 0% and 0%" not in page


def test_only_its_owner_may_read_it_and_what_could_not_be_read_is_in_it(tmp_path: Path) -> None:
    page = write_audit_page(tmp_path / "report.html", **image_audit(200, notes=["broken \ud800 name"]))
    assert stat.S_IMODE(page.stat().st_mode) == 0o600 and list(tmp_path.iterdir()) == [page]
    text = page.read_text(encoding="utf-8")
    assert "broken ? name" in text, "half a character does not stop the page"
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert (data["total"], data["listed"], data["unreadable"]) == (230, 230, 30)
    kinds = [data["kinds"][kind] for kind in data["rows"]["kind"]]
    assert kinds[-30:] == ["unreadable"] * 30 and "unreadable" not in kinds[:-30]
    assert data["rows"]["id"][-1] == "broken/29.png" and data["rows"]["score"][-1] is None


@pytest.mark.parametrize(
    ("verdict", "reason", "headline"),
    [
        ("biased", "A shortcut was found: the frame.", "A shortcut was found: the frame."),
        ("no evidence", "PGD finds nothing.", "No evidence of a shortcut: PGD finds nothing."),
        ("no evidence", "", "No evidence of a shortcut."),
    ],
)
def test_the_verdict_is_a_sentence(tmp_path: Path, verdict: str, reason: str, headline: str) -> None:
    page = write_audit_page(tmp_path / "report.html", **image_audit(200, verdict=verdict, reasons=[reason]))
    assert f'<p class="headline">{headline}</p>' in page.read_text(encoding="utf-8")


def test_data_cannot_leave_its_element_and_ids_in_any_script_leave_the_page_small() -> None:
    data = {"a": "</script><!--<script>", "b": ["<", "é\u2028"]}
    assert "<" not in as_json(data) and json.loads(as_json(data)) == data
    names = ["写真/" * 60 + f"{row}.png" for row in range(10_000)]
    listed = table_order({"id": names, "path": [""] * len(names), "rank": list(range(1, 10_001))})
    assert sum(len(names[row].encode()) for row in listed) < 1_300_000
