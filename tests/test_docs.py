"""The documentation site builds, its links lead somewhere, and its tutorials run."""

import ast
import doctest
import inspect
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.main import get_command

import debiaser
from conftest import example
from debiaser.cli import app
from debiaser.data.benchmarks import DATASETS, folder_sets
from debiaser.data.raw import SETS
from debiaser.data.split import Batch
from debiaser.learn.forward import look
from debiaser.paper.spec import COMMON_OPTIONS
from debiaser.paper.theory.fisher import head_fisher
from golden import text_model

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = [("debiaser", name) for name in debiaser.__all__ if not name.startswith("_")]
ADAPTERS = [
    ("debiaser.integrations.lightning", "DebiasedSampling"),
    ("debiaser.integrations.sklearn", "DebiasedClassifier"),
    ("debiaser.integrations.transformers", "DebiasedTrainer"),
]


def public(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        pytest.skip(f"{error}: this test did not run")


@pytest.mark.parametrize(("module", "name"), [*PUBLIC, *ADAPTERS])
def test_public_names_say_what_they_take_and_give_and_show_it(module: str, name: str) -> None:
    thing = public(module, name)
    text = inspect.getdoc(thing) or ""
    wanted = [">>> "] if inspect.isclass(thing) else ["Args:", "Returns:", "Raises:", ">>> "]
    assert [heading for heading in wanted if heading not in text] == []
    assert len(text.split("\n\n")[0].replace("\n", " ")) <= 240, "the first paragraph is one sentence"
    taken = [each for each in signature(thing).parameters.values() if each.kind != inspect.Parameter.VAR_KEYWORD]
    absent = [each.name for each in taken if not re.search(rf"\b{each.name}\b", text)]
    assert not absent, f"what {', '.join(absent)} is"


@pytest.mark.parametrize(("module", "name"), [*PUBLIC, ("debiaser.integrations.sklearn", "DebiasedClassifier")])
def test_examples_in_docstrings_run(module: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the public names, a small network and a small dataset; what frameworks need is in examples/."""
    if name in {"read_scores", "score_stream"}:
        pytest.importorskip("pyarrow", reason="pyarrow is not here: this test did not run")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(64, 6), torch.arange(64) % 2)
    names = {each: getattr(debiaser, each) for each in debiaser.__all__} | {
        "model": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)),
        "dataset": dataset,
        "DebiasedClassifier": public("debiaser.integrations.sklearn", "DebiasedClassifier"),
    }
    found = doctest.DocTestFinder(recurse=False).find(public(module, name), name, globs=names)
    assert any(each.examples for each in found)
    for each in found:
        assert doctest.DocTestRunner().run(each).failed == 0, capsys.readouterr().out


def build(project: Path, out: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(project / "mkdocs.yml")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([*line, "-d", str(out)], capture_output=True, text=True, env=variables)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (`make docs`): this test did not run")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed (`make docs`): this test did not run")
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there_and_asks_nothing_of_other_sites(site: Path) -> None:
    for source in (ROOT / "docs").rglob("*.md"):
        page = site / source.relative_to(ROOT / "docs").with_suffix(".html")
        assert page.exists(), f"{source} has no page"
        text = page.read_text()
        fetched = re.findall(r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]+)", text)
        assert not fetched, f"{page.name} fetches {fetched}"
        assert not re.search(r"<!-- (?:readme|file|datasets|sources|options|rooms|pgd)", text), (
            f"{page.name}: a mark was left as it is"
        )


def test_the_benchmarks_page_says_where_every_set_is_to_be_had(site: Path) -> None:
    page = (site / "benchmarks.html").read_text()
    for known in folder_sets().values():
        assert known.page in page and known.contents in page, known.name
    for name, known in SETS.items():
        assert f"<code>{name}.npz</code>" in page and known.mirrors[0].title in page
    for name, source in DATASETS.items():
        own = signature(source.load).parameters.keys() - set(COMMON_OPTIONS)
        assert name in page and all(f"<code>{option}=" in page for option in own)
    assert 'src="pictures/ccifar.png"' in page, "the contact sheet of the corruptions"


def test_the_reference_has_every_public_name_and_every_command(site: Path) -> None:
    reference, commands = (site / "api.html").read_text(), (site / "commands.html").read_text()
    for name in debiaser.__all__:
        if not name.startswith("_"):
            assert f'id="debiaser.{name}"' in reference, f"{name} is not in the reference"
    for name in get_command(app).commands:
        assert f">debiaser {name}" in commands, f"{name} is not among the commands"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")], ids=str)
def test_files_that_are_named_are_there(page: Path | str) -> None:
    """Those of the package below it or, where no folder is named, below the room of the paragraph; scripts to run."""
    for name in re.findall(r"\bpython ([\w./]+\.py)", (ROOT / page).read_text()):
        assert (ROOT / name).exists(), f"{page} runs {name}"
    for paragraph in (ROOT / page).read_text().split("\n\n"):
        room = re.match(r"\*\*(\w+)\*\*", paragraph)
        for name in re.findall(r"`((?:[\w.]+/)*\w+\.py)`", paragraph):
            folders = [ROOT, ROOT / "src" / "debiaser", *([ROOT / "src" / "debiaser" / room[1]] if room else [])]
            assert name == "utils.py" or any((folder / name).exists() for folder in folders), f"{page} names {name}"


def test_pgd_in_three_lines_is_cut_out_of_the_source(site: Path) -> None:
    code = re.search(r"<pre>.*?</pre>", (site / "architecture.html").read_text(), re.DOTALL)
    lines = re.sub(r"<[^>]+>", "", code[0] if code else "").replace("&quot;", '"').strip().splitlines()
    source = (ROOT / "src" / "debiaser" / "methods" / "pgd.py").read_text()
    assert len(lines) == 3 and all(line in source for line in lines)


def test_reports_to_open_are_small_and_linked_from_the_first_screen() -> None:
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    reports = list((ROOT / "docs" / "reports").glob("*.html"))
    assert reports
    for path in reports:
        assert f"docs/reports/{path.name}" in first and path.stat().st_size < 2_000_000, path.name
        assert "Content-Security-Policy" in path.read_text()[:5000], "a page of ours"


def test_the_readme_is_short_and_its_tables_narrow() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120 and all(line.count("|") <= 7 for line in lines if line.startswith("|"))


def test_a_link_that_leads_nowhere_is_noticed(site: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[nowhere](no_such_page.md), [here](index.md#no-such-place)\n")
    ours = f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nplugins: []\nhooks: []\nextra_css: []\n"
    (tmp_path / "mkdocs.yml").write_text(ours)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "no_such_page.md" in done.stderr and "no-such-place" in done.stderr


def test_examples_are_short_and_each_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    examples = list((ROOT / "examples").glob("*.py"))
    assert examples
    for path in examples:
        assert len(path.read_text().splitlines()) < 60, path.name
        assert f'example("{path.stem}")' in tests or f'"examples" / "{path.name}"' in tests, path.name


def test_the_loop_of_the_tutorial_learns_and_scores() -> None:
    found = example("own_loop").main(short=4, long=2)
    assert found["score of conflicting samples"] > 10 * found["score of other samples"]
    assert 10 < found["training rests on so many samples"] < 600


def test_the_audit_of_the_tutorial_reaches_a_verdict(tmp_path: Path) -> None:
    found = example("own_data").main(out=str(tmp_path / "audit"), epochs=1, workers=1)
    assert found["verdict"] in {"biased", "cannot tell"}, "the colour is there and must not be denied"
    assert (tmp_path / "audit" / "report.html").exists()


def test_methods_are_compared(tmp_path: Path) -> None:
    found = example("compare_methods").main(str(tmp_path), epochs=1)
    assert set(found) == {"vanilla", "pgd", "jtt", "dpr"} and all(0 <= value <= 100 for value in found.values())


def test_marks_lead_to_a_model(tmp_path: Path) -> None:
    found = example("mark_and_fix").main(str(tmp_path), epochs=1, workers=1)
    assert found["marks"] == 60 and (Path(str(found["model"])) / "model.safetensors").exists()


def test_the_audit_of_texts_sees_the_days(tmp_path: Path) -> None:
    texts = example("own_texts")
    known = [*texts.WORDS, *texts.OPINION, *texts.DAY]
    found = texts.main(texts.make_table(200), backbone=str(text_model(tmp_path, known)), workers=1)
    assert found["verdict"] != "no evidence" and {"tuesday", "thursday"} & set(found["words"])


PAPERS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
PAGES = [*PAPERS, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def blocks(page: str, language: str) -> list[str]:
    """What stands in code blocks of a language, a pattern; each opening fence is matched with its own end."""
    fenced = re.findall(r"^```(\S*)\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [code for written, code in fenced if re.fullmatch(language, written)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_one(page: str) -> None:
    """Names and options, in fenced, indented and inline code; they are not run. `make` targets are in the Makefile."""
    text = (ROOT / page).read_text()
    lines = [line for block in blocks(page, "sh|console") for line in block.replace("\\\n", " ").splitlines()]
    unnamed = "\n".join(["", *blocks(page, ""), *re.findall(r"^    (.*)", text, re.MULTILINE)])
    lines += re.findall(r"\n((?:debiaser|make|torchrun) .*)", unnamed)
    named = re.findall(r"`((?:debiaser|make) [a-z][^`]*)`", text)
    for line in (*lines, *named):
        words = shlex.split(re.sub(r"\s+", " ", line.split(" | ")[0].split(" > ")[0]), comments=True)
        if words[:1] == ["make"]:
            target = re.compile(rf"^{words[1]}:", re.MULTILINE)
            assert target.search((ROOT / "Makefile").read_text()), line
        if "debiaser" not in words or words[0] in {"pip", "git", "cd"}:
            continue
        command, rest = get_command(app), words[words.index("debiaser") + 1 :]
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            assert rest[0] in command.commands, f"{page}: there is no such command: {line}"
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for each in command.params for option in each.opts} | {"--help", "-h"}
        assert {word for word in rest if word.startswith("--")} <= known, f"{page}: unknown option: {line}"


@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page_imports_what_is_there_and_calls_it_by_its_arguments(page: str) -> None:
    for code in blocks(page, "python"):
        nodes, known = list(ast.walk(ast.parse(code))), dict[str, Any]()
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("debiaser"):
                known |= {each.name: public(str(node.module), each.name) for each in node.names}
        for call in nodes:
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in known:
                given = {each.arg: None for each in call.keywords if each.arg}
                signature(known[call.func.id]).bind(*call.args, **given)


OWN_NAMES = [path.stem for path in (ROOT / "docs" / "methods").glob("*.md") if "```python" in path.read_text()]


@pytest.mark.parametrize("name", OWN_NAMES)
def test_the_code_of_a_method_runs(name: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(64, 6)
    names: dict[str, Any] = {"model": model, "dataset": TensorDataset(x, (x[:, 0] > 0).long())}
    for code in blocks(f"docs/methods/{name}.md", "python"):
        exec(compile(code, name, "exec"), names)
    assert isinstance(names["result"].model, nn.Module)


def test_the_code_for_streams_and_for_the_trace_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not here: this test did not run")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    x, y = torch.randn(40, 6), torch.arange(40) % 2
    names: dict[str, Any] = {"biased": model, "stream": list(zip(x, y.tolist(), strict=True))}
    exec(compile(blocks("docs/large_data.md", "python")[0], "streams", "exec"), names)
    assert len(names["sampler"]) == 1_000_000
    outputs = list(look(model, [Batch(x, y, torch.arange(40))]))
    fishers = {each: head_fisher(outputs, torch.rand(40)) for each in ("one", "other")}
    given = {"outputs": outputs, "scores": names["read_scores"]("scores"), **fishers}
    exec(compile(blocks("docs/theory.md", "python")[0], "trace", "exec"), given)
    assert given["inverse_trace"](given["fisher"], damping=1.0) > 0


@pytest.mark.long
def test_the_code_for_images_runs(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands but for its length."""
    monkeypatch.chdir(folder.rename(folder.parent / "images").parent)
    (code,) = blocks("docs/audit_images.md", "python")
    names: dict[str, Any] = {}
    exec(compile(code.replace("out=", "epochs=1, workers=1, out="), "images", "exec"), names)
    assert names["findings"].verdict == "cannot tell", "so few images"


def slugs(path: Path) -> set[str]:
    """The anchors of a page, as GitHub and mkdocs make them of its headings."""
    found = re.findall(r"^#+ (.+)", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}


@pytest.mark.parametrize("page", PAGES)
def test_links_within_the_repository_lead_somewhere(page: str) -> None:
    """As GitHub shows the page; pages that the site makes by itself are checked when it is built."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", link):
            continue
        place, _, anchor = link.partition("#")
        path = (ROOT / page).parent / place if place else ROOT / page
        assert path.exists() or path.name in {"api.md", "commands.md"}, f"{page}: {link}"
        assert not anchor or anchor in slugs(path), f"{page}: {link}"


@pytest.mark.long
def test_the_code_for_texts_runs(tmp_path: Path) -> None:
    """With a network of our own beside it: what is printed is that of the docs but for the backbone."""
    texts = example("own_texts")
    table = texts.make_table(60).rename(columns={"label": "sentiment"}).assign(author=range(60))
    code = re.search(r"<!-- example: texts -->\n```python\n(.*?)```", (ROOT / "docs/audit_texts.md").read_text(), re.S)
    assert code
    backbone = str(text_model(tmp_path, [*texts.WORDS, *texts.OPINION, *texts.DAY]))
    names = {"table": table}
    exec(compile(code[1].replace('unit="author"', f"unit='author', backbone={backbone!r}"), "texts", "exec"), names)
    assert names["findings"].verdict in {"biased", "cannot tell", "no evidence"}
