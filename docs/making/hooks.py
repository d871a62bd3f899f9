"""What mkdocs does with docs/: pages in order, sections of the README in place, references made from the source.

A page stands in the navigation where ORDER names it; one that is there and not named comes last, and one that is named
and not there is left out. The commands, the Python reference and the papers of the repository are made here.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from html import escape
from inspect import signature
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

import debiaser
from debiaser.cli import app
from debiaser.data.benchmarks import DATASETS, folder_sets
from debiaser.data.raw import ARCHIVES, SETS
from debiaser.paper.spec import COMMON_OPTIONS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ORDER: dict[str, list[str]] = {
    "Begin here": ["index.md", "audit_images.md", "audit_texts.md", "marks.md", "own_loop.md"],
    "Why believe it": ["verdict.md", "evidence.md", "glossary.md"],
    "Compare methods": ["methods/index.md", "benchmarks.md", "gallery.md", "add_method.md", "methods/*.md"],
    "Reproduce the paper": ["studies.md", "results.md", "recipes.md", "deviations.md", "theory.md"],
    "In depth": ["speed.md", "large_data.md", "many_processes.md", "architecture.md"],
    "Reference": ["commands.md", "api.md"],
    "The project": ["changelog.md", "contributing.md", "security.md"],
}
PAPERS = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}
MADE = {"commands.md", "api.md", *PAPERS}
README_MARK, FILE_MARK = re.compile(r"<!-- readme: (.+?) -->"), re.compile(r"<!-- file: (.+?) -->")
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def navigation(pages: set[str]) -> list[dict[str, list[str]]]:
    """The pages that are there, by chapter; those that no chapter names come last."""
    rest, chapters = set(pages), []
    for chapter, wanted in ORDER.items():
        found: list[str] = []
        for name in wanted:
            matching = sorted(each for each in rest if Path(each).match(name)) if "*" in name else [name]
            found += [each for each in matching if each in rest and each not in found]
        rest -= set(found)
        if found:
            chapters.append({chapter: found})
    return [*chapters, *([{"More": sorted(rest)}] if rest else [])]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation, from what is there."""
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    config.nav = navigation(written | MADE)
    first: list[Any] = next(iter(config.nav[0].values()))
    first[0] = {"Quick start": first[0]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that are made, beside those that were written."""
    made = {"commands.md": commands_page(), "api.md": reference_page()}
    made |= {page: (ROOT / name).read_text() for page, name in PAPERS.items()}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """The page with sections of the README in place, and links that lead somewhere in the site."""
    source = page.file.src_uri
    home = ROOT if source in PAPERS else DOCS / Path(source).parent
    text = kept_links(markdown, home, Path(source).parent)
    text = README_MARK.sub(lambda mark: kept_links(readme_section(mark[1]), ROOT, Path()), text)
    text = FILE_MARK.sub(lambda mark: source_file(mark[1]), text)
    for mark, make in LISTS.items():
        text = text.replace(mark, make()) if mark in text else text
    return spaced_lists(text)


def source_file(name: str) -> str:
    """A file of the repository, under its name."""
    return "\n".join([f"`{name}`", "", "```python", (ROOT / name).read_text().strip(), "```"])


def datasets() -> str:
    """The benchmarks that `train` knows, and what they are."""
    rows = [f"| `{name}` | {source.about} |" for name, source in DATASETS.items()]
    return "\n".join(["| name | description |", "| --- | --- |", *rows])


def sources() -> str:
    """What each set is as files, how many rows it must hold, and where it is to be had."""
    lines = ["| dataset | what to put into the data folder | samples | source |", "| --- | --- | --- | --- |"]
    for name, known in SETS.items():
        idx = all(part.stem for part in known.parts.values())
        files = "idx files, gzipped or not" if idx else f"binary batches, loose or as `{ARCHIVES[0]}`"
        places = f"`{name}.npz`, or its {files}, in `{name}/` or `{known.also}/`"
        rows = " + ".join(f"{known.parts[key].shape[0]:,}" for key in ("y_train", "y_test"))
        lines.append(
            f"| {name} | {places} | {rows} | {', '.join(dict.fromkeys(each.title for each in known.mirrors))} |"
        )
    for name, known in folder_sets().items():
        places = f"`{name}/` with {known.contents}, or `{name}.zip`, `{name}.tar`, `{name}.tar.gz`"
        rows = " + ".join(f"{total:,}" for total in totals(known.counts).values())
        fetched = f"`debiaser data get {name}`, or " if known.mirrors else "download by hand: "
        lines.append(f"| {name} | {places} | {rows} | {fetched}{known.page} |")
    return "\n".join(lines)


def totals(counts: Mapping[str, int]) -> dict[str, int]:
    """Rows per split, where they may be counted by class."""
    parts = dict.fromkeys(part.partition("/")[0] for part in counts)
    return {part: sum(n for name, n in counts.items() if name.partition("/")[0] == part) for part in parts}


def dataset_options() -> str:
    """What `--option` takes, by benchmark, with the usual value and the words of the loader."""
    lines = []
    for name, source in DATASETS.items():
        own = [each for each in signature(source.load).parameters.values() if each.name not in COMMON_OPTIONS]
        if own:
            plain = {None: "none", True: "true", False: "false"}
            usual = ", ".join(f"`{each.name}={plain.get(each.default, each.default)}`" for each in own)
            words = " ".join((source.load.__doc__ or "").split())
            lines.append(f"- **{name}** {usual}. {words}")
    return "\n".join(lines)


def rooms() -> str:
    """The folders and files of the package, with the first sentence of each."""
    lines = ["| package or module | purpose |", "| --- | --- |"]
    for path in sorted((ROOT / "src" / "debiaser").iterdir()):
        file = path / "__init__.py" if path.is_dir() else path
        if file.suffix == ".py" and file.exists() and path.name != "__init__.py":
            first = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].replace("\n", " ")
            lines.append(f"| `{path.name}{'/' if path.is_dir() else ''}` | {first} |")
    return "\n".join(lines)


def pgd() -> str:
    """The three steps of PGD, cut out of its source, where comments number them."""
    source = (ROOT / "src" / "debiaser" / "methods" / "pgd.py").read_text()
    steps = [line.strip() for line in source.splitlines() if re.search(r"# step \d", line)]
    assert [step.partition("# step ")[2][0] for step in steps] == ["1", "2", "3"], "methods/pgd.py numbers its steps"
    return "\n".join(["```python", *steps, "```"])


LISTS: dict[str, Callable[[], str]] = {
    "<!-- pgd -->": pgd,
    "<!-- datasets -->": datasets,
    "<!-- sources -->": sources,
    "<!-- options -->": dataset_options,
    "<!-- rooms -->": rooms,
}


def readme_section(title: str) -> str:
    """What stands under this heading of the README; KeyError where there is none."""
    parts = re.split(r"^## (.+)\n", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title].strip()


def kept_links(text: str, home: Path, seen_from: Path) -> str:
    """The text with links to files of the repository that are pages turned to them, and other such links to words."""

    def fixed(link: re.Match[str]) -> str:
        words, target = link[1], link[2]
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        path, _, anchor = target.partition("#")
        there = (home / path).resolve()
        papers = {(ROOT / name).resolve(): page for page, name in PAPERS.items()}
        if there in papers:
            name = papers[there]
        elif there.is_relative_to(DOCS):
            name = there.relative_to(DOCS).as_posix()
        elif there.exists():
            return words  # a source file: not part of the site
        else:
            return link[0]  # the link check of mkdocs complains
        up = "../" * len(seen_from.parts)
        return f"[{words}]({up}{name}{'#' if anchor else ''}{anchor})"

    return LINK.sub(fixed, text)


def spaced_lists(text: str) -> str:
    """The text with an empty line before every list, which Markdown on code hosts does not need and this one does."""
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        before = lines[-1] if lines else ""
        if not fenced and ITEM.match(line) and before and not before.startswith(" ") and not ITEM.match(before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


INTRODUCTION = (
    "Import everything from `debiaser`, unless a longer path is given. A default such as "
    "`bounded(0.7, above=0, at_most=1)` is 0.7 and gives the allowed range; `choice('eval', 'train')` lists the "
    "allowed values, of which the first is the default."
)


def reference_page() -> str:
    """The public names with their docstrings, as mkdocstrings is to show them."""
    names = [name for name in sorted(debiaser.__all__, key=str.lower) if not name.startswith("_")]
    small = [name for name in names if not name[0].isupper()]
    large = [name for name in names if name[0].isupper()]
    integrations = {
        "sklearn": ["DebiasedClassifier"],
        "lightning": ["DebiasedSampling"],
        "transformers": ["DebiasedTrainer"],
        "ray": ["score_dataset"],
    }
    others = [f"integrations.{module}.{name}" for module, named in integrations.items() for name in named]
    parts = ["# Python reference", "", INTRODUCTION]
    for title, listed in (("Functions", small), ("Classes", large), ("In other frameworks", others)):
        parts += ["", f"## {title}", "", *(f"::: debiaser.{name}\n" for name in listed)]
    return "\n".join(parts)


def commands_page() -> str:
    """Every command with its arguments and options, from the commands themselves."""
    parts = ["# Commands", "", "As in `debiaser --help`. For exit codes and `--json`, see [quick start](index.md)."]
    for name, command in commands(get_command(app)):
        parts += ["", f"## debiaser {name}", "", str(command.help or "").strip(), ""]
        parts += ["| argument or option | default | description |", "| --- | --- | --- |"]
        for each in command.params:
            names = each.name.upper() if each.param_type_name == "argument" else ", ".join(each.opts)
            help_text = escape(str(getattr(each, "help", None) or "")).replace("|", "\\|")
            parts.append(f"| `{names}` | {default(each)} | {help_text} |")
    return "\n".join(parts)


def default(parameter: Any) -> str:
    """The default as it would be typed; nothing where there is none."""
    if parameter.required:
        return "required"
    value = parameter.default
    return "" if value in (None, "", False, ()) or callable(value) else f"`{value}`"


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command below a group, by its whole name."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command
