"""Marks of a person: found again in the data, chosen next, and taken by the local page of `debiaser mark`."""

import csv
import http.client
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from audit_folders import image_audit
from conftest import assert_refused, debiaser
from debiaser import audit
from debiaser.auditing.api import command_line, make_request
from debiaser.auditing.marks import Marks, choose_to_mark, marked_at_random, match_marks, random_sequence
from debiaser.cli.marking import Server
from debiaser.errors import Misuse, Problem
from debiaser.report.audit_page import write_audit_page
from test_page_in_browser import browser, css, press, run, show  # noqa: F401 (a fixture)

# --- found again ------------------------------------------------------------------------------------------------------

# 0 and 1 are one image with two labels, 2 and 3 one image with one label; the last is not a file.
OWN = SimpleNamespace(
    ids=[*"012345"],
    paths=[*(f"{n}.jpg" for n in range(5)), ""],
    contents=["same", "same", "twin", "twin", "four", "five"],
    classes=("land", "water"),
    y=torch.tensor([0, 1, 0, 0, 1, 1]),
)
ALL = "id,mark,label,content"


def matched(folder: Path, content: str, own: Any = OWN) -> Marks:
    (folder / "marks.csv").write_text(content, encoding="utf-8")
    return match_marks(own, folder / "marks.csv")


@pytest.mark.parametrize(
    ("lines", "found", "told"),
    [
        ("id,mark\n0,a\n1, C \n4,MISLABELLED\n5,\n", {0: "aligned", 1: "conflicting", 4: "mislabelled"}, ""),
        ("\ufeffid;mark\n0;water\n4; dry land \n", {0: "water", 4: "dry land"}, ""),
        ('"mark","id"\nsea,0\nm,4\nwet,2\n', {0: "sea", 4: "mislabelled", 2: "wet"}, ""),
        ("id,mark\n0,Dry  land\n4, dry land\n2,DRY LAND \n", {0: "Dry land", 4: "Dry land", 2: "Dry land"}, ""),
        (f"{ALL}\n,c,water,same\n,a,land,same\n,a,land,twin\n", {1: "conflicting", 0: "aligned", 2: "aligned"}, ""),
        (f"{ALL}\nother name,a,water,four\n3,c,land,twin\n", {4: "aligned", 3: "conflicting"}, ""),
        (f"{ALL}\n4,a,water,new\n0,c,land,same\n", {4: "aligned", 0: "conflicting"}, "1 of 2 .* not the same files"),
        (f"{ALL}\n5,a,water,new\n0,c,land,same\n", {0: "conflicting"}, "1 of 2 .* not in this data.*'5'"),
        ("id,mark\n0,a\n4,c\ngone,a\n", {0: "aligned", 4: "conflicting"}, "1 of 3 .* not in this data.*'gone'"),
        ("id,mark,label\n0,a,water\n4,c,water\n", {4: "conflicting"}, "1 of 2 .* now labelled differently.*'0'"),
        ("id,mark\n0,a\n0,c\n4,a\n4,a\n", {4: "aligned"}, "two ways, and left out: '0'"),
        ("id,mark\n2,a\n3,c\n4,a\n", {4: "aligned"}, "two ways, and left out: '2', '3'"),
        ("id,mark\n0,sea\n1,shore\n4,sea\n", {4: "sea"}, "two ways, and left out: '0', '1'"),
        ("id,mark\n0,sea\n2,shore\n4,a\n5,m\n", {0: "sea", 2: "shore", 5: "mislabelled"}, "are tags, so the 1 others"),
        ("id,mark\n0,sea\n2,c\n4,a\n", {2: "conflicting", 4: "aligned"}, "the 1 others .'sea'. are ignored"),
    ],
)  # fmt: skip
def test_marks_are_found_by_content_then_id_and_what_is_not_used_is_told(
    tmp_path: Path, lines: str, found: dict[int, str], told: str
) -> None:
    marks = matched(tmp_path, lines)
    assert marks.by_sample == found and re.search(told, " ".join(marks.notes))
    assert bool(re.search("left out|not in|ignored|now labelled|not the same", " ".join(marks.notes))) == bool(told)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("id,mark\n0,a\n2,c\n", "Only 2 samples are marked: mark at least 10"),
        ("id,mark\n0,a\n2,c\n", "No sample is marked of 'water': mark some of every class"),
        ("id,mark\n0,a\n4,a\n", "All 2 say 'aligned'"),
        ("id,mark\n0,m\n4,m\n", "All are mislabelled ones"),
        ("id,mark\n0,dry\n2,dry\n4,wet\n5,m\n", "so it adds no information"),
        ("id,mark\n0,dry\n1,dry\n2,wet\n4,wet\n5,wte\n", "Only one sample is marked 'wte': correct it if"),
    ],
)
def test_what_marks_cannot_do_is_told(tmp_path: Path, lines: str, told: str) -> None:
    assert any(told in note for note in matched(tmp_path, lines).notes)


def test_a_tag_that_varies_within_a_class_is_fine(tmp_path: Path) -> None:
    marks = matched(tmp_path, "id,mark\n" + "".join(f"{n},{'wd'[n % 3 == 0]}\n" for n in (0, 2, 4, 5)))
    assert marks.counts == {"w": 3, "d": 1} and len(marks.notes) == 1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("id,mark\nx/1.png,a\ny,c\n", "none of the 2 marked .* first: 'x/1.png'.* saved for another data set"),
        ("id,mark\n0,a\n0,c\n", "no mark in .* can be used: Marked in two ways, and left out: '0'; mark"),
        ("id,mark,label\n0,a,water\n", "no mark in .* can be used: 1 of 1"),
        ("id,mark\n0,\n", "holds no marks"),
        ("id,mark\n", "holds no marks"),
        ("", "no columns id and mark"),
        ("id,kind\n0,a\n", "no columns id and mark"),
        ("row,mark,label,rows\n0,a,land,6\n", "numbers its samples.* mark in the page of a new audit"),
        ("id,mark\n" + "0" * 200_000 + ",a\n", "cannot read"),
    ],
)
def test_a_file_of_no_use_is_refused(tmp_path: Path, lines: str, told: str) -> None:
    with pytest.raises(Problem, match=told):
        matched(tmp_path, lines)


def test_bytes_that_are_no_text_are_refused_and_data_without_contents_goes_by_id(tmp_path: Path) -> None:
    (tmp_path / "marks.csv").write_bytes("id,mark\nä,a\n".encode("utf-16"))
    with pytest.raises(Problem, match=r"cannot read .*give the CSV"):
        match_marks(OWN, tmp_path / "marks.csv")  # type: ignore[arg-type]
    plain = SimpleNamespace(**{**vars(OWN), "contents": [], "paths": [""] * 6})
    assert matched(tmp_path, "id,mark,label,content\n4,a,water,x\n", plain).by_sample == {4: "aligned"}


def test_the_old_name_of_the_option_is_taken_and_the_line_to_run_next_names_what_was_named(tmp_path: Path) -> None:
    assert make_request({"confirmed": tmp_path}).marks == tmp_path == make_request({"marks": tmp_path}).marks
    with pytest.raises(Misuse, match=r"known options: .*marks"):
        make_request({"mark": tmp_path})
    own = SimpleNamespace(source="my data/t.csv", total=6)
    line = command_line(own, {"label": "y", "finetune": True, "max_cost": 2.0}, "debias")  # type: ignore[arg-type]
    assert line == "debiaser debias 'my data/t.csv' --label y --finetune --max-cost 2.0"
    frame = SimpleNamespace(source="DataFrame", total=6)
    line = command_line(frame, {"text": "t", "marks": "marks.csv"}, "debias")  # type: ignore[arg-type]
    assert line == "findings = debiaser.debias(DATAFRAME, text='t', marks='marks.csv')"


# --- chosen next ------------------------------------------------------------------------------------------------------


def chosen(sizes: list[int], n: int = 60, marked: Any = (), seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The labels, scores that grow with the sample number, and what is chosen of all but the last ten samples."""
    y = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows, why = choose_to_mark(y, np.arange(len(y), dtype=float), np.arange(len(y) - 10), marked, n, seed)
    return y, rows, why


@pytest.mark.parametrize("sizes", [[500, 500], [900, 90], [100, 200, 300, 400, 50]])
def test_half_by_score_half_at_random_balanced_at_every_length(sizes: list[int]) -> None:
    y, rows, why = chosen(sizes)
    assert len(rows) == len(set(rows.tolist())) == 60 and rows.max() < len(y) - 10
    for length in range(1, 61):
        counts = Counter(y[rows[:length]].tolist())
        assert max(counts.values()) - min(counts.get(k, 0) for k in range(len(sizes))) <= 1
        assert abs(why[:length].count("score") - length / 2) <= 1
    for k in range(len(sizes)):
        picked = [row for row, each in zip(rows.tolist(), why, strict=True) if each == "score" and y[row] == k]
        others = [row for row in np.flatnonzero(y[: len(y) - 10] == k).tolist() if row not in rows]
        assert picked == sorted(picked, reverse=True) and min(picked) > max(others), "the highest scores, highest first"


def test_what_a_class_lacks_goes_to_others_and_nothing_is_asked_twice() -> None:
    y, rows, _ = chosen([200, 4])
    assert Counter(y[rows].tolist())[0] == 60 - int((y[:-10] == 1).sum()) and len(rows) == 60
    y, rows, _ = chosen([20, 20])
    assert sorted(rows.tolist()) == list(range(30)), "all there are"
    first = chosen([500, 500])[1]
    _, second, _ = chosen([500, 500], marked=first.tolist())
    assert not set(first.tolist()) & set(second.tolist()) and len(second) == 60
    assert (chosen([500, 500])[1] == first).all() and set(chosen([500, 500], seed=1)[1].tolist()) != set(first.tolist())
    y, rows, _ = chosen([10] * 100, marked=range(500))
    seen = Counter(y[:500].tolist())
    asked = [seen[k] for k in y[rows].tolist()]
    assert max(asked) <= sorted(seen.get(k, 0) for k in range(100))[65], "of many classes those with the fewest marks"


def test_random_marks_are_known_again_and_those_by_score_are_not_among_them() -> None:
    y, rows, why = chosen([500, 500])
    pool = np.arange(len(y) - 10)
    found = marked_at_random(y, pool, rows.tolist(), 0)
    at_random = {row for row, each in zip(rows.tolist(), why, strict=True) if each == "random"}
    assert at_random <= set(np.concatenate(list(found.values())).tolist()), "some by score may be in the sequence too"
    for k, each in found.items():
        sequence = random_sequence(y, k, 0)
        sequence = sequence[np.isin(sequence, pool)]
        assert (each == sequence[: len(each)]).all() and 15 <= len(each) <= 18
    skipped = [row for row in rows.tolist() if row != found[0][3]]
    assert len(marked_at_random(y, pool, skipped, 0)[0]) == len(found[0]) - 1
    half = rows[:30].tolist()  # who stops half way leaves a random choice too
    assert [len(each) for each in marked_at_random(y, pool, half, 0).values()] == pytest.approx([7.5, 7.5], abs=1)


def test_random_marks_estimate_a_share_without_bias() -> None:
    """Marks by score find the conflicting samples; the estimate from those at random is right all the same."""
    against, seen = np.zeros(400, bool), []
    against[-40:] = True  # the highest scores
    y = np.zeros(400, np.int64)
    for seed in range(300):
        rows, _ = choose_to_mark(y, np.arange(400.0), np.arange(400), (), 40, seed)
        seen.append(against[marked_at_random(y, np.arange(400), rows.tolist(), seed)[0]].mean())
        assert against[rows].mean() > 0.4
    assert np.mean(seen) == pytest.approx(0.1, abs=0.02)


def test_findings_give_the_next_samples_as_a_table() -> None:
    y = np.repeat([0, 1], 50)
    right = np.where(np.arange(100) % 5, y, 1 - y)
    probability = np.where(np.arange(2) == right[:, None], 0.9, 0.1)
    findings = audit(y, probability)
    asked = findings.to_mark(20)
    assert list(asked.columns) == ["id", "path", "label", "why", "content"] and len(asked) == 20
    assert Counter(asked["label"]) == {"0": 10, "1": 10} and Counter(asked["why"]) == {"score": 10, "random": 10}
    assert [findings.rows["id"][each["place"]] for each in findings.summary["to_mark"]][:20] == list(asked["id"])
    silent = audit(y, np.full((100, 2), [0.9, 0.1]))
    assert not len(silent.to_mark()) and silent.summary["to_mark"] == []
    why = silent.summary["marks"]["why_none"]
    assert why in silent.summary["notes"] and "no better than guessing" in why


def page_data(folder: Path) -> Any:
    """What the page of an audit holds."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def test_what_to_mark_is_written_beside_the_page_and_marks_come_back(folder: Path, cache: Path, tmp_path: Path) -> None:
    y = np.repeat([0, 1], 10)
    answers = np.where(np.arange(2) == np.where(np.arange(20) % 5, y, 1 - y)[:, None], 0.9, 0.1)
    findings = audit(folder, answers, out=tmp_path / "out")
    asked = pd.read_csv(tmp_path / "out" / "to_mark.csv")
    assert list(asked.columns) == ["id", "path", "label", "why", "content"] and sorted(asked["id"]) == sorted(
        findings.rows["id"]
    )
    told = page_data(tmp_path / "out")
    assert [told["rows"]["id"][place] for place in told["to_mark"]] == list(asked["id"])
    table = findings.to_mark(8).assign(mark=["wet", "dry"] * 4, id="renamed")
    table.to_csv(tmp_path / "marks.csv", index=False)
    again = audit(folder, answers, out=tmp_path / "out", marks=tmp_path / "marks.csv")
    assert again.summary["marks"]["counts"] == {"dry": 4, "wet": 4}
    assert list(again.rows["kind"]) == list(findings.rows["kind"])
    assert sorted(again.to_mark()["id"]) == sorted(set(findings.rows["id"]) - set(findings.to_mark(8)["id"]))
    told = page_data(tmp_path / "out")
    assert [each["mark"] for each in told["marks"]] == ["wet", "dry"] * 4 and len(told["to_mark"]) == 12


# --- debiaser mark ----------------------------------------------------------------------------------------------------


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    """The folder of an audit."""
    audit = image_audit(200)
    write_audit_page(tmp_path / "report.html", **audit)
    (tmp_path / "audit.json").write_text(json.dumps({"next": audit["findings"]["next"]}))
    return tmp_path


@pytest.fixture
def server(audited: Path) -> Iterator[Server]:
    made = Server(audited / "report.html", audited / "marks.csv", "debiaser debias x --marks marks.csv")
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def ask(server: Server, verb: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(verb, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


HEAD = b"id,mark,label,content\n"


def test_the_page_is_given_with_its_token_and_marks_are_written_for_their_owner(server: Server) -> None:
    status, page = ask(server, "GET", f"/?token={server.token}")
    assert status == 200 and server.token.encode() in page and b"default-src 'none'; connect-src 'self';" in page
    assert b"connect-src" not in server.page.read_bytes(), "only the page that is served may speak"
    for lines in (b"a,aligned,3,x\n", b"a,<b>,3,x\n"):
        assert ask(server, "POST", f"/marks?token={server.token}", HEAD + lines)[0] == 204
        assert server.marks.read_bytes() == HEAD + lines and stat.S_IMODE(server.marks.stat().st_mode) == 0o600
    status, page = ask(server, "GET", f"/?token={server.token}", Host=f"localhost:{server.server_address[1]}")
    assert status == 200 and b'"mark": "\\u003cb>"' in page, "what is in the file is in the page, as text"
    here = {path.name for path in server.marks.parent.iterdir()} - {".marks.lock"}
    assert here == {"audit.json", "marks.csv", "report.html"}


def test_a_change_leaves_what_another_page_or_server_wrote(server: Server) -> None:
    for lines in (b"a,aligned,3,x\n", b"b,aligned,3,y\n,conflicting,3,z\n", b"b,,3,y\na,conflicting,3,x\n"):
        with Server(server.page, server.marks, "") as other:
            threading.Thread(target=other.serve_forever, daemon=True).start()
            assert ask(other, "POST", f"/marks?token={other.token}", HEAD + lines)[0] == 204
            other.shutdown()
    assert server.marks.read_bytes() == HEAD + b"a,conflicting,3,x\n,conflicting,3,z\n"
    lines = [f"{n},tag,3,{n}\n".encode() for n in range(8)]
    threads = [
        threading.Thread(target=ask, args=(server, "POST", f"/marks?token={server.token}", HEAD + each))
        for each in lines
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(server.marks.read_bytes().splitlines()) == 11


@pytest.mark.parametrize(
    ("verb", "path", "body", "headers", "status"),
    [
        ("GET", "/?token=TOKEN", None, {"Host": "evil.example"}, 421),
        ("GET", "/?token=TOKEN", None, {"Host": "127.0.0.1"}, 421),
        ("POST", "/marks?token=TOKEN", HEAD, {"Host": "evil.example:80"}, 421),
        ("GET", "/", None, {}, 403),
        ("GET", "/?token=TOKENx", None, {}, 403),
        ("POST", "/marks", HEAD, {}, 403),
        ("POST", "/marks?token=%C3%A4", HEAD, {}, 403),
        ("GET", "/marks?token=TOKEN", None, {}, 404),
        ("GET", "/../audit.json?token=TOKEN", None, {}, 404),
        ("POST", "/?token=TOKEN", HEAD, {}, 404),
        ("POST", "/marks?token=TOKEN", None, {"Content-Length": str((1 << 20) + 1)}, 413),
        ("POST", "/marks?token=TOKEN", None, {"Content-Length": "-1"}, 411),
        ("POST", "/marks?token=TOKEN", b"import os\n", {}, 400),
        ("POST", "/marks?token=TOKEN", b"id,mark,label,content\n\xff", {}, 400),
        ("PUT", "/marks?token=TOKEN", HEAD, {}, 501),
    ],
)
def test_everything_else_is_refused(
    server: Server, verb: str, path: str, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    got, content = ask(server, verb, path.replace("TOKEN", server.token), body, **headers)
    assert got == status and not server.marks.exists() and server.token.encode() not in content


def test_ctrl_c_tells_how_many_marks_there_are_and_what_to_run_next(audited: Path) -> None:
    line = [sys.executable, "-m", "debiaser", "mark", str(audited)]
    started = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    try:
        address = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", started.stdout.readline())
        assert address is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=10)
        connection.request("POST", f"/marks?token={address[2]}", HEAD + b"a,aligned,3,x\nb,conflicting,2,y\n")
        assert connection.getresponse().status == 204
        os.kill(started.pid, signal.SIGINT)
        told, wrong = started.communicate(timeout=20)
    finally:
        started.kill()
    assert (started.returncode, wrong) == (0, "")
    marks = audited / "marks.csv"
    assert told.splitlines()[-1] == f"2 marks are in {marks}. Next: debiaser debias scans/clinic --marks {marks}"


def test_what_cannot_be_served_is_told_in_one_line(tmp_path: Path) -> None:
    assert_refused(debiaser("mark", str(tmp_path)), 1, "no report.html in .*: run `debiaser audit")
    (tmp_path / "report.html").write_text('<html><script>find("served")</script></html>')  # sends all marks each time
    assert_refused(debiaser("mark", str(tmp_path)), 1, "older version of debiaser: run the audit again")
    write_audit_page(tmp_path / "report.html", **image_audit(60))
    (tmp_path / "marks.csv").write_text("something else\n")
    assert_refused(debiaser("mark", str(tmp_path)), 1, "has no columns id and mark: move it away")


# --- marking in the page ----------------------------------------------------------------------------------------------


def lines(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream))[1:]


def waiting(path: Path, count: int, last: Sequence[str] = ()) -> list[list[str]]:
    """The lines of the file once it has so many and, where earlier ones are as many, the last change is in it."""
    deadline = time.monotonic() + 10
    while not path.exists() or len(lines(path)) != count or (last and last not in [row[:2] for row in lines(path)]):
        assert time.monotonic() < deadline, path.exists() and lines(path)
        time.sleep(0.02)
    return lines(path)


def name_tags(browser: Any, text: str) -> None:  # noqa: F811
    from selenium.webdriver.common.keys import Keys

    (field,) = css(browser, "#tags")
    run(browser, "arguments[0].select()", field)
    field.send_keys(text, Keys.ENTER)
    assert browser.switch_to.active_element == css(browser, "#marker")[0]


def test_marks_by_key_one_at_a_time_and_the_file_is_written_as_one_goes(browser: Any, server: Server) -> None:  # noqa: F811
    from selenium.webdriver.common.keys import Keys

    address = f"http://127.0.0.1:{server.server_address[1]}/?token={server.token}"
    show(browser, address)
    asked = run(browser, "return data.to_mark.map(place => data.rows.id[place])")
    (count,), title = css(browser, "#marker-count"), lambda: css(browser, "#marker-facts dd")[-1].text
    run(browser, "document.getElementById('marker').focus()")
    press(browser, "a", "c", Keys.SPACE, "m", "u", "c", Keys.ARROW_LEFT)
    assert count.text == f"3 of {len(asked)}" and title() == asked[3]
    expected = [[asked[n], mark] for n, mark in ((0, "aligned"), (1, "conflicting"), (3, "conflicting"))]
    assert [row[:2] for row in waiting(server.marks, 3)] == expected
    ask(server, "POST", f"/marks?token={server.token}", HEAD + b"of another page,conflicting,3,x\n")
    press(browser, "u", "c", Keys.ARROW_LEFT)
    both = sorted([*expected, ["of another page", "conflicting"]])
    assert sorted(row[:2] for row in waiting(server.marks, 4, expected[2])) == both
    ask(server, "POST", f"/marks?token={server.token}", HEAD + b"of another page,,3,x\n")
    name_tags(browser, "water,  dry   land ,m, Water")
    assert "has a key of its own" in css(browser, "#tags-told")[0].text and count.text.startswith("0 of")
    assert "3 marked without tags are kept, not saved" in css(browser, "#other")[0].text
    assert [one.text for one in css(browser, "#marker-marks button")] == ["1 water", "2 dry land", "m Mislabelled"]
    press(browser, Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_LEFT, "1", "2", "m", "a")
    css(browser, "#marker-marks button")[1].click()
    press(browser, "u", "1")
    expected = [[asked[n], mark] for n, mark in ((0, "water"), (1, "dry land"), (2, "mislabelled"), (3, "water"))]
    assert sorted(row[:2] for row in waiting(server.marks, 4, expected[3])) == sorted(expected)
    assert all(len(content) == 32 for *_, content in lines(server.marks))
    name_tags(browser, "water, Dry land")
    assert css(browser, "#counter")[0].text == "4 marked: 2 water, 1 Dry land, 1 mislabelled"
    name_tags(browser, "sea, dry land")  # written in another way: what was marked goes with it
    assert css(browser, "#counter")[0].text == "4 marked: 2 sea, 1 dry land, 1 mislabelled"
    run(browser, "document.querySelector('.gallery .sample').focus()")
    press(browser, "2")
    assert css(browser, ".gallery .sample")[0].get_attribute("data-mark") == "dry land"
    assert Counter(row[1] for row in waiting(server.marks, 5)) == {"sea": 2, "dry land": 2, "mislabelled": 1}
    browser.get(address)
    assert css(browser, "#counter")[0].text.startswith("5 marked: ") and "2 sea" in css(browser, "#counter")[0].text
    assert css(browser, "#tags")[0].get_attribute("value") in ("sea, dry land", "dry land, sea")
    assert f"--marks {server.marks.name}" in css(browser, "#next-marks")[0].text
    assert browser.get_log("browser") == []


def test_all_marked_is_told_and_marks_of_before_go_with_the_new_ones(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    made = image_audit(200)
    made["findings"]["to_mark"] = made["findings"]["to_mark"][:3]
    first = made["findings"]["to_mark"][0]["place"]
    before = [{"place": first, "id": made["rows"]["id"][first], "mark": "wet", "label": "0", "content": "x"}]
    before += [{"place": -1, "id": "held/out.png", "mark": "dry", "label": "1", "content": "y"}]
    page = write_audit_page(tmp_path / "report.html", **made, marks=before)
    show(browser, page.as_uri())
    assert css(browser, "#tags")[0].get_attribute("value") == "wet, dry"
    assert css(browser, "#marker-count")[0].text == "1 of 3"
    run(browser, "document.getElementById('marker').scrollIntoView()")
    press(browser, "2", "1")  # nothing has the focus: the keys are for what is in view
    assert css(browser, "#marker-count")[0].text == "3 of 3: all marked. Save them now."
    browser.refresh()
    assert css(browser, "#counter")[0].text == "4 marked: 2 wet, 2 dry"
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    assert not css(browser, "#after-save")[0].is_displayed()
    run(browser, "document.getElementById('save').click()")
    assert ["held/out.png", "dry", "1", "y"] in waiting(tmp_path / "marks.csv", 4)
    assert css(browser, "#after-save")[0].is_displayed() and browser.get_log("browser") == []


def test_a_page_without_paths_names_samples_by_their_content(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    made = image_audit(200)
    page = write_audit_page(tmp_path / "report.html", **made, redact=frozenset({"paths"}))
    show(browser, page.as_uri())
    run(browser, "document.getElementById('marker').focus()")
    press(browser, "c")
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    run(browser, "document.getElementById('save').click()")
    row = made["findings"]["to_mark"][0]["place"]
    assert waiting(tmp_path / "marks.csv", 1) == [["", "conflicting", made["rows"]["label"][row], f"{row:032x}"]]
    assert css(browser, "#next-marks")[0].text == "debiaser debias SOURCE --marks marks.csv"


def test_degenerate_models_ask_for_no_marks(tmp_path: Path) -> None:
    made = image_audit(60)
    made["findings"] |= {"to_mark": [], "marks": {"counts": {}, "notes": [], "why_none": "No samples are chosen: so."}}
    text = write_audit_page(tmp_path / "report.html", **made).read_text(encoding="utf-8")
    assert "No samples are chosen: so." in text and 'id="marker"' not in text and 'id="save"' in text
