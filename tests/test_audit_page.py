"""The page of an audit in a real browser: opens, sorts, filters, reviews, enlarges, and foreign text stays text."""

import csv
import json
import re
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import test_page_in_browser
from audit_folders import Audit, findings, image_audit, score_columns, text_audit
from debiaser.report.audit_page import as_json, table_order, write_audit_page
from debiaser.report.figures import break_even

browser, show = test_page_in_browser.browser, test_page_in_browser.show  # the same fixture as for the other page
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='hacked=2'>\"'\n../../é😀</script>&amp;"


@pytest.fixture(scope="module")
def image_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_audit_page(tmp_path_factory.mktemp("image") / "report.html", **image_audit()).as_uri()


@pytest.fixture(scope="module")
def text_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_audit_page(tmp_path_factory.mktemp("text") / "report.html", **text_audit()).as_uri()


def css(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def table_column(browser: Any, number: int) -> list[str]:
    """What stands in one column of the rows of the table that are in the page."""
    rows = "document.querySelectorAll('#window tr[data-place]')"
    return browser.execute_script(f"return [...{rows}].map(row => row.cells[arguments[0] - 1].textContent)", number)


def press(browser: Any, *keys: str) -> None:
    browser.switch_to.active_element.send_keys(*keys)


def saved(browser: Any, folder: Path) -> list[list[str]]:
    """The rows of the CSV file that the page hands out."""
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    browser.execute_script("document.getElementById('save').click()")
    deadline = time.monotonic() + 10
    while not (folder / "confirmed.csv").exists():
        assert time.monotonic() < deadline, "nothing was downloaded"
        time.sleep(0.05)
    with (folder / "confirmed.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream))


# --- in the browser -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["image_page", "text_page"])
def test_opens_with_every_part_and_without_a_complaint(browser: Any, kind: str, request: pytest.FixtureRequest) -> None:
    show(browser, request.getfixturevalue(kind))
    assert browser.get_log("browser") == []
    parts = [
        "next",
        "repair",
        "views",
        "galleries",
        "triplets",
        "looks",
        "suspects",
        "kinds",
        "sixty",
        "scores",
        "table",
        "left-out",
        "how",
    ]
    parts += ["mislabelled", "saw"] if kind == "image_page" else []
    assert [part for part in parts if not css(browser, f"section h2#{part}")] == []
    said = css(browser, "main")[0].text
    for sentence in (
        "A shortcut was found: the model follows the colour cast in 30%",
        "62% right, chance 10%",
        "“north” never goes with label “3”",
        "30% of swaps followed, chance 6%",
        "Difference on all held-out rows: +37.5 [31.0, 44.0] points (95% interval, p = 0.001, 120 units).",
    ):
        assert sentence in said
    assert said.count("+37.5 [31.0, 44.0]") == 2, "in the sentence and in the table"
    assert not re.search(r"\bbiased\b", css(browser, "body")[0].text)
    sizes = browser.execute_async_script(
        "const done = arguments[0], all = [...document.images];"
        "Promise.all(all.map(i => i.decode().catch(() => 0))).then(() => done(all.map(i => i.naturalWidth)))"
    )
    assert 0 not in sizes
    assert len(sizes) > 200 if kind == "image_page" else not sizes
    told = [each.text for each in css(browser, ".strip.of-texts blockquote")][:3]
    assert told == ([] if kind == "image_page" else ["a dreary film", "a spiffing film", "a spiffing film"])


def test_the_proof_is_drawn(browser: Any, image_page: str) -> None:
    """Before and after, the plane with planted rows, break-even, the forest, and sixty samples to look at."""
    show(browser, image_page)
    first = css(browser, "#views ~ .measures .measure")[0]
    assert "Before: 30% of swaps" in first.text.replace("\n", " ") and "After: 8%" in first.text.replace("\n", " ")
    assert len(css(browser, "#plane-planted use")) == 40 and len(css(browser, "#plane-conflicting use")) == 40
    assert len(css(browser, "#sixty-list .sample")) == 60
    assert len(css(browser, "[id^=price-course]")) == 2 and len(css(browser, "#price-even-band")) == 1
    assert len(css(browser, "#suspects ~ figure [id^=forest-dot]")) == 2
    assert "chosen" in css(browser, ".results .flag")[0].text


def test_lines_of_the_price_cross_at_the_break_even_share() -> None:
    """Gain 30 on rows against, cost 1.5 on the others: level at 1.5 / 31.5 of the cases."""
    even = {"value": 100 * 1.5 / 31.5, "low": 3.0, "high": 7.0}
    sides = {"before": {"follow": 97.0, "against": 40.0}, "after": {"follow": 95.5, "against": 70.0}}
    drawn = break_even(**sides, even=even, share={"low": 0.0, "high": 0.012}, alt="price")
    lines = re.findall(
        r'id="price-(course-aligned|course-right|even-line)"><path d="M (\S+) (\S+) \sL (\S+) (\S+)', drawn
    )
    (x1, a1, x2, a2), (_, b1, _, b2), even_line = (
        [float(each) for each in next(line for line in lines if line[0] == name)[1:]]
        for name in ("course-aligned", "course-right", "even-line")
    )
    assert x1 + (x2 - x1) * (b1 - a1) / ((b1 - a1) + (a2 - b2)) == pytest.approx(even_line[0], abs=0.1)


def test_galleries_hold_what_their_heads_say(browser: Any, image_page: str) -> None:
    show(browser, image_page)
    sides = browser.execute_script(
        "return [...document.querySelectorAll('.gallery-row')].map(row => [row.querySelector('h3').textContent,"
        " ...[...row.querySelectorAll('.thumbnails')].map(list => [...list.children].map(li => li.firstChild.title))])"
    )
    assert [name for name, *_ in sides] == [str(k) for k in range(10)]
    for name, typical, against in sides:
        assert all(f"labelled {name}, easy model says {name}, follows the rule" in words for words in typical)
        assert all(words.startswith(f"labelled {name},") and f"says {name}," not in words for words in against)
        assert len(typical) == 10
        assert against


def test_sorts_by_any_column_and_draws_only_what_is_in_view(browser: Any, image_page: str) -> None:
    show(browser, image_page)
    assert [int(rank) for rank in table_column(browser, 1)[:5]] == [1, 2, 3, 4, 5]
    head = css(browser, "#window th.col-score")[0]
    for expected in ("descending", "ascending"):
        browser.execute_script("arguments[0].firstChild.click()", head)
        scores = [float(score) for score in table_column(browser, 6)]
        assert head.get_attribute("aria-sort") == expected
        assert scores == sorted(scores, reverse=expected == "descending")
    assert scores[0] < 0.001
    assert len(scores) < 40
    browser.execute_script("const w = document.getElementById('window'); w.scrollTop = w.scrollHeight")
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert table_column(browser, 1)[-1] == "–", "what is unknown comes last either way"
    assert len(css(browser, "#window tr[data-place]")) < 40


def test_filters_by_kind_class_and_text(browser: Any, image_page: str) -> None:
    show(browser, image_page)
    told = css(browser, "#matches")[0]
    assert told.text == "630 of 630"
    choose = (
        "const one = document.getElementById(arguments[0]);"
        "one.value = [...one.options].find(option => option.text === arguments[1]).value;"
        "one.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    browser.execute_script(choose, "by-kind", "goes against it")
    assert set(table_column(browser, 5)) == {"goes against it"}
    browser.execute_script(choose, "by-class", "3")
    assert set(table_column(browser, 3)) == {"3"}
    ids = table_column(browser, 2)
    css(browser, "#search")[0].send_keys(ids[-1])
    assert table_column(browser, 2) == ids[-1:]
    assert told.text == "1 of 630"
    css(browser, "#search")[0].send_keys("nothing like this")
    assert told.text == "0 of 630"
    assert browser.get_log("browser") == []


def test_reviews_by_keys_saves_and_remembers(browser: Any, image_page: str, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, image_page)
    browser.execute_script("localStorage.clear()")
    show(browser, image_page)
    assert not css(browser, "#review")[0].is_displayed()
    first, second, third = css(browser, ".gallery .sample")[:3]
    names = [one.get_attribute("title").split(", ")[-1] for one in (first, second, third)]
    browser.execute_script("arguments[0].focus()", first)
    press(browser, "a", "j", "c", Keys.ARROW_RIGHT, "m")
    assert browser.switch_to.active_element == third
    press(browser, "u", "k", "m")
    counter = css(browser, "#counter")[0]
    assert counter.text == "2 marked: 1 follows the rule, 1 mislabelled"
    browser.execute_script("document.getElementById('window').focus()")
    press(browser, Keys.ARROW_DOWN, "j", Keys.ARROW_UP, "c")
    assert css(browser, "#window tr.current")[0].get_attribute("data-mark") == "conflicting"
    in_table = table_column(browser, 2)[1]
    marked = [(names[0], "aligned"), (names[1], "mislabelled"), (in_table, "conflicting")]
    labels = "return data.names[data.rows.label[data.rows.id.indexOf(arguments[0])]]"
    expected = [[name, mark, browser.execute_script(labels, name)] for name, mark in marked]
    assert saved(browser, tmp_path) == [["id", "mark", "label"], *expected]
    show(browser, image_page)
    assert css(browser, "#counter")[0].text == "3 marked: 1 follows the rule, 1 goes against it, 1 mislabelled"
    assert css(browser, ".gallery .sample")[1].get_attribute("data-mark") == "mislabelled"
    assert browser.get_log("browser") == []
    browser.execute_script("localStorage.clear()")


@pytest.mark.parametrize("kind", ["image_page", "text_page"])
def test_enlarges_by_key_and_click_steps_and_closes(browser: Any, kind: str, request: pytest.FixtureRequest) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, request.getfixturevalue(kind))
    browser.execute_script("localStorage.clear()")
    show(browser, request.getfixturevalue(kind))
    dialog, (first, second) = css(browser, "#enlarged")[0], css(browser, "#look-list .sample")[:2]
    browser.execute_script("arguments[0].focus()", first)
    press(browser, Keys.ENTER)
    assert dialog.is_displayed()
    title = css(browser, "#dialog-title")[0]
    assert title.text == first.get_attribute("title").split(", ")[-1]
    press(browser, Keys.ARROW_RIGHT, "c")
    assert title.text == second.get_attribute("title").split(", ")[-1]
    assert css(browser, "#enlarged [data-mark=conflicting]")[0].get_attribute("aria-pressed") == "true"
    shown = "img.heat-debiased" if kind == "image_page" else ".words-debiased"
    assert not css(browser, f"#dialog-body {shown}")[0].is_displayed()
    css(browser, "#dialog-look [data-look=debiased]")[0].click()
    assert css(browser, f"#dialog-body {shown}")[0].is_displayed()
    press(browser, Keys.ESCAPE)
    assert not dialog.is_displayed()
    assert browser.switch_to.active_element == first
    assert second.get_attribute("data-mark") == "conflicting"
    row = css(browser, "#window tr[data-place]")[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", row)
    row.click()
    assert dialog.is_displayed()
    browser.execute_script("localStorage.clear()")
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["image_page", "text_page"])
def test_phone_never_scrolls_sideways(browser: Any, kind: str, scheme: str, request: pytest.FixtureRequest) -> None:
    show(browser, request.getfixturevalue(kind), 360, scheme)
    browser.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) == 0
    ink = browser.execute_script("return getComputedStyle(document.body).color")
    assert ink == {"light": "rgb(29, 33, 41)", "dark": "rgb(231, 233, 237)"}[scheme]
    browser.execute_script("document.querySelector('.sample').click()")
    box = browser.execute_script(
        "const d = document.getElementById('enlarged').getBoundingClientRect(); return [d.left, d.right]"
    )
    assert box[0] >= 0
    assert box[1] <= 360
    assert browser.get_log("browser") == []


def hostile_audit(kind: str) -> Audit:
    names = [HOSTILE, *"123456789"]
    audit = image_audit(300, names, HOSTILE) if kind == "image" else text_audit(names=(HOSTILE, "good"), extra=HOSTILE)
    told = audit["findings"]
    told |= {"source": HOSTILE, "examined": HOSTILE, "reasons": [HOSTILE] * 2, "notes": [HOSTILE]}
    told |= {"choices": {HOSTILE: HOSTILE}, "next": {"sentences": [HOSTILE], "snippet": HOSTILE}}
    told["unreadable"] = [{"id": HOSTILE, "reason": HOSTILE}]
    told["duplicates"] = [{"ids": [HOSTILE, HOSTILE + "2"], "across": True}]
    first, view = told["suspects"][0], told["views"][0]
    told["suspects"] = [{**first, "column": HOSTILE, "values": [{"value": HOSTILE, "n": 2, "error_rate": 50.0}]}]
    told["views"] = [{**view, "title": HOSTILE}]
    told["repair"] |= {"sentence": HOSTILE, "before": {HOSTILE: told["repair"]["before"]["vanilla"]}}
    return audit


@pytest.mark.parametrize("kind", ["image", "text"])
def test_hostile_names_and_texts_stay_text(browser: Any, kind: str, tmp_path: Path) -> None:
    show(browser, write_audit_page(tmp_path / "report.html", **hostile_audit(kind)).as_uri())
    browser.execute_script("localStorage.clear()")
    browser.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.hacked") is None
    assert browser.execute_script("return document.querySelectorAll('script').length") == 2
    assert browser.execute_script("return document.querySelectorAll('img:not([src^=\"data:image/webp\"])').length") == 0
    names = browser.execute_script(
        "return [...document.querySelectorAll('.gallery-row h3')].map(one => one.textContent)"
    )
    assert HOSTILE in names
    assert browser.execute_script("return document.querySelector('#how ~ .note, .note').textContent") == HOSTILE
    assert browser.execute_script("return document.getElementById('snippet').textContent") == HOSTILE
    if kind == "text":
        excerpt = browser.execute_script("return document.querySelector('.gallery .excerpt').textContent")
        assert excerpt.endswith(HOSTILE)
    one = css(browser, ".gallery .sample")[0]
    browser.execute_script("arguments[0].focus()", one)
    press(browser, "c")
    rows = saved(browser, tmp_path)
    assert rows[1][1] == "conflicting"
    assert rows[1][0].startswith(HOSTILE if kind == "image" else "review ")
    browser.execute_script("document.querySelector('.sample').click()")
    assert browser.execute_script("return window.hacked") is None
    assert browser.get_log("browser") == []
    browser.execute_script("localStorage.clear()")


def test_the_policy_forbids_what_an_escape_might_miss(browser: Any, image_page: str) -> None:
    show(browser, image_page)
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 3'; document.body.append(s);"
        "const c = document.createElement('style'); c.textContent = 'body { display: none }'; document.body.append(c);"
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://127.0.0.1:9/x.png\" onerror=\"hacked = 4\">')"
    )
    assert browser.execute_script("return window.hacked") is None
    assert browser.execute_script("return getComputedStyle(document.body).display") == "block"
    assert sum("Content Security Policy" in entry["message"] for entry in browser.get_log("browser")) >= 3


def test_ten_thousand_images_stay_under_five_megabytes_and_quick(browser: Any, tmp_path: Path) -> None:
    n, kept = 100_000, 500
    random = np.random.default_rng(0)
    names = [f"class {k}" for k in range(10)]
    label, said = random.integers(0, 10, n), random.integers(0, 10, n)
    said = np.where(random.random(n) < 0.9, label, said)
    columns = score_columns(
        [f"{names[k]}/some folder/picture_{row:06}.jpg" for row, k in enumerate(label)], names, label, said
    )
    small = random.integers(0, 256, (kept, 40, 40, 3)).astype(np.uint8)
    rows = np.concatenate([np.argsort(columns["rank"])[: kept // 2], np.argsort(-columns["rank"])[: kept // 2]])
    images = small.repeat(4, axis=1).repeat(4, axis=2)  # harder to press than photographs of that size
    samples = {
        row: {"image": image, "easy": np.full(10, 0.1)} for row, image in zip(rows.tolist(), images, strict=True)
    }
    told = findings("image", names, label, label != said, np.asarray(columns["score"])) | {"unreadable": []}
    page = write_audit_page(tmp_path / "report.html", told, columns, samples, {})
    assert 1e6 < page.stat().st_size < 5e6
    show(browser, page.as_uri())
    assert "The 10,000 highest-ranked of 100,000 pictures" in css(browser, "main")[0].text
    assert css(browser, "#matches")[0].text == "10,000 of 10,000"
    assert len(css(browser, ".gallery .sample")) == 200
    sort = "document.querySelector('#window th.col-score button').click()"
    sort = f"const start = performance.now(); {sort}; return performance.now() - start"
    assert browser.execute_script(sort) < 1000
    assert browser.get_log("browser") == []


# --- the file -------------------------------------------------------------------------------------------------------


def test_redacted_paths_leave_no_name(tmp_path: Path, browser: Any) -> None:
    audit = image_audit(prefix="anna-mueller_")
    told = audit["findings"]
    told["notes"] = ["17 of them were slow, first anna-mueller_3/17.png", "see /data/private/x.txt"]
    told["unreadable"] = [{"id": "sub/ottokar.png", "reason": "cannot identify image file 'ottokar.png'"}]
    values, cell = [{"value": "ottokar", "n": 3, "error_rate": 10.0}], {"value": "ottokar", "label": "1"}
    column = {"column": "file name token", "values": values, "empty": [cell]}
    told["suspects"] = [*told["suspects"], {**told["suspects"][0], **column}]
    told["reasons"] = ["A suspect column has an empty cell: file name token 'ottokar' never goes with label '1'."]
    full = write_audit_page(tmp_path / "full.html", **audit).read_text(encoding="utf-8")
    page = write_audit_page(tmp_path / "report.html", **audit, redact=frozenset({"paths"}))
    text = page.read_text(encoding="utf-8")
    for name in ("anna-mueller", "ottokar", "clinic", "/data/private"):
        assert name in full and name not in text
    assert "17 of them were slow" in text and "never goes with label" in text
    show(browser, page.as_uri())
    assert re.fullmatch(r"row \d+", table_column(browser, 2)[0])
    assert css(browser, ".gallery .sample")
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("kind", ["image", "text"])
def test_redacted_images_leave_no_picture_and_no_text(tmp_path: Path, browser: Any, kind: str) -> None:
    audit = image_audit() if kind == "image" else text_audit(extra="unmistakable")
    full = write_audit_page(tmp_path / "full.html", **audit).read_bytes()
    assert (b"data:image" if kind == "image" else b"unmistakable") in full
    page = write_audit_page(tmp_path / "report.html", **audit, redact=frozenset({"images"}))
    content = page.read_bytes()
    assert b"data:image" not in content
    assert b"unmistakable" not in content
    show(browser, page.as_uri())
    assert css(browser, "#window tr[data-place]")
    assert not css(browser, "img, .sample")
    assert browser.get_log("browser") == []


def test_only_its_owner_may_read_it_and_nothing_else_is_left(tmp_path: Path) -> None:
    page = write_audit_page(tmp_path / "report.html", **image_audit(200, notes=["broken \ud800 name"]))
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [page]
    assert b"broken ? name" in page.read_bytes(), "half a character does not stop the page"


def test_what_could_not_be_read_stands_in_the_table_too(tmp_path: Path) -> None:
    text = write_audit_page(tmp_path / "report.html", **image_audit(200)).read_text(encoding="utf-8")
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert (data["total"], data["listed"], data["unreadable"]) == (230, 230, 30)
    kinds = [data["kinds"][kind] for kind in data["rows"]["kind"]]
    assert kinds[-30:] == ["unreadable"] * 30 and "unreadable" not in kinds[:-30]
    assert data["rows"]["id"][-1] == "broken/29.png" and data["rows"]["score"][-1] is None


@pytest.mark.parametrize(
    ("verdict", "reason", "headline"),
    [
        ("biased", "The model follows the frame.", "A shortcut was found: the model follows the frame."),
        ("biased", "A shortcut was found: the frame.", "A shortcut was found: the frame."),
        ("no evidence", "PGD finds nothing.", "No evidence of a shortcut: PGD finds nothing."),
        ("no evidence", "", "No evidence of a shortcut."),
    ],
)
def test_the_verdict_is_a_sentence(tmp_path: Path, verdict: str, reason: str, headline: str) -> None:
    page = write_audit_page(tmp_path / "report.html", **image_audit(200, verdict=verdict, reasons=[reason]))
    assert f'<p class="headline">{headline}</p>' in page.read_text(encoding="utf-8")


def test_data_cannot_leave_its_element() -> None:
    data = {"a": "</script><!--<script>", "b": ["<", "é\u2028"]}
    assert "<" not in as_json(data)
    assert json.loads(as_json(data)) == data


def test_ids_in_any_script_leave_the_page_small() -> None:
    names = ["写真/" * 60 + f"{row}.png" for row in range(10_000)]
    listed = table_order({"id": names, "path": [""] * len(names), "rank": list(range(1, 10_001))})
    assert sum(len(names[row].encode()) for row in listed) < 1_300_000
