"""Pages, docstrings and messages use the field's words: the table in CONTRIBUTING.md lists the phrases that are not written."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "CONTRIBUTING.md").exists():
    pytest.skip("the pages are not here", allow_module_level=True)
BREAK = r"(?:\s+|\s*\n[ #*>]*)"  # between two words: also the end of a line of prose or of comments


def phrases() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    return [phrase for row in rows[1:] for phrase in row.split(", ")]


def pattern_of(wrong: list[str]) -> re.Pattern:
    """Of whole words, which may begin a sentence: not "performed", and not "in half precision" or "in half a minute"."""
    texts = (f"(?i:{phrase[0]})" + BREAK.join(map(re.escape, phrase[1:].split(" "))) for phrase in wrong)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(texts)})(?![\w-])(?!{BREAK}(?:precision|an?)\b)")


def texts() -> list[Path]:
    folders = [path for folder in ("halfgnn", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("*.py"),
        ROOT / "Makefile",
        *(ROOT / "make").glob("*.mk"),
    ]
    return [*pages, *folders]


def findings(pattern: re.Pattern, text: str) -> list[str]:
    return [f"line {text[: found.start()].count(chr(10)) + 1}: {found.group(0)!r}" for found in pattern.finditer(text)]


def test_no_phrase_that_the_table_replaces():
    pattern, table = pattern_of(phrases()), re.compile(r"^\| instead of.*?\n\n", re.MULTILINE | re.DOTALL)
    found = {path: findings(pattern, table.sub("\n", path.read_text())) for path in texts()}
    assert {path.relative_to(ROOT).as_posix(): lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("what is formed", 1),
        ("# the rows are written\n    # to, anew", 2),
        ("the CPU half; in half", 2),
        ("performed in half precision, in half\n  precision", 0),
        ("`stand_in`, half the memory, in HALF, in half a minute", 0),
    ],
)
def test_phrases_are_found_across_lines(text, count):
    assert len(findings(pattern_of(phrases()), text)) == count
