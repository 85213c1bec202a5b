"""The short tables of the pages, and that every picture in the repository is shown by a page."""

import dataclasses
import re
from pathlib import Path

import pytest

from benchmarks import cli, records, rows, table, table_pages, targets
from benchmarks.programs.records import KEPT, ProgramRow
from benchmarks.table_programs import models_headline
from tests.benchmarks.test_benchmarks_programs import _row as program_row
from tests.benchmarks.test_benchmarks_rows import _gpu_row as gpu_row
from tests.benchmarks.test_benchmarks_rows import row_of

ROOT = Path(__file__).resolve().parents[2]
GAT = dict(nodes=20000, edges=400000, size="large")
PROGRAMS = [
    program_row("GATConv", 1.0), program_row("hand", 4.0), program_row("GATConv", 0.5, **GAT),
    program_row("GATConv", 0.25, gpu="NVIDIA H200", size="huge", edges=2400000),
    program_row("GATConv", 1.9, gpu="NVIDIA H200"), program_row("GATConv", 1.6, cpu="another"),
]  # fmt: skip


def test_expectations_have_a_line_per_layer_and_the_worst_of_all_programs():
    text = table_pages.expectations(PROGRAMS)
    assert text.startswith(
        "| layer | CPU, 45,000 edges, fp32 | CPU, 400,000 edges, fp32 | H200, 2,400,000 edges, fp32 |"
    )
    assert "\n| GATConv | 2.00 x | 4.00 x | 8.00 x |\n" in text and "\n| hand " not in text
    assert "\n| **programs measured** | 2 | 1 | 1 |\n| **their geometric mean** | 1.00 x | 4.00 x | 8.00 x |\n" in text
    assert "\n| **the worst of them** | **0.500 x** | 4.00 x | 8.00 x |\n" in text
    assert "* NVIDIA H200: 2026-01-01, commits abc, torch 2, torch_geometric 3." in text and "another" not in text


def test_all_programs_and_devices_are_of_the_same_rows():
    assert "\n| hand | **0.500 x** | - | - |" in table_pages.all_programs(PROGRAMS)
    lines = table_pages.devices(PROGRAMS).splitlines()[2:]
    assert lines[0] == "| C, avx2, one thread | 45,000 | fp32 | 2 | 1.00 x | **0.500 x** | 2.00 x |"
    assert lines[2] == "| NVIDIA H200 | 2,400,000 | fp32 | 1 | 8.00 x | 8.00 x | 8.00 x |"


def test_memory_is_a_share_of_the_bytes_without():
    found = [program_row("A", 1.0), program_row("B", 1.0, kept_with=400), program_row("C", 1.0, kept_with=None)]
    assert table_pages.saved_memory(found).endswith("| 45,000 | fp32 | 2 | 1 | 50% | 25% | 100% |")


def test_models_of_the_readme_name_their_conditions():
    text = models_headline([dataclasses.replace(row, kept_with=2**20, kept_without=2**22) for row in PROGRAMS[:3]])
    assert "20,000 nodes, 400,000 edges, 64 features, fp32; one thread of an C (avx2)." in text
    assert text.endswith("| GAT | 2 | 0 | 4.00 x | 4 | 1 |")


def test_operators_have_a_table_per_instruction_set_of_its_newest_processor():
    def on(cpu, kernels, ms, **changes):
        return [
            row_of(name, time, cpu=cpu, kernels=kernels, **changes) for name, time in (("halfgnn", ms), ("dgl", 8.0))
        ]

    new = dict(date="2026-02-01T00:00:00Z")
    found = [*on("Old", "avx2", 1.0), *on("New", "avx2", 2.0, **new), *on("Kept", "avx2", 1.0, memory="kept", date="2026-03-01"),
             *on("New", "avx2", 4.0, graph=targets.GRAPHS[1], **new), *on("Wide", "avx512", 5.0)]  # fmt: skip
    text = table_pages.operators(found)
    assert "**AVX2**: New, kernels avx2, 2 threads" in text and "**AVX-512**: Wide" in text
    assert "Old" not in text and "Kept" not in text
    assert "| copy_u_sum | forward | 128 | 2.00 | 8.00 dgl | 4.00 x | - | 2.00 x | - |" in text


def test_gpu_operators_stand_beside_the_gather_and_the_best_right_rival():
    large = dict(graph=table_pages.GPU_GRAPHS[1])
    found = [gpu_row("halfgnn", 2.0, limit_share=0.8), gpu_row("torch.sparse", 8.0), gpu_row("index_add", 1.0, error=0.5),
             gpu_row("halfgnn unfused", 5.0), gpu_row("halfgnn", 7.0, limit_share=0.5, **large)]  # fmt: skip
    text = table_pages.gpu_operators(found)
    assert "| u_mul_e_sum | forward | 128 | 2.00 | 80% | 5.00 halfgnn, unfused | 2.50 x | 7.00 | 50% |" in text


def test_no_rows_make_no_tables():
    of_programs = (table_pages.expectations, table_pages.all_programs, table_pages.devices, table_pages.saved_memory)
    assert {made([]) for made in (*of_programs, table_pages.operators, table_pages.gpu_operators)} == {""}


def test_command_prints_sections(tmp_path, capsys, monkeypatch):
    records.append(tmp_path / KEPT, ProgramRow, PROGRAMS)
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    assert cli.main(["table", "devices", "all_programs", "cuda"]) == 0
    assert capsys.readouterr().out == table.section("devices", tmp_path) + table.section("all_programs", tmp_path)
    with pytest.raises(SystemExit, match="section 'nothing': expected one of missed, "):
        cli.main(["table", "nothing"])


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="no pages in this copy")
def test_pages_are_short_and_show_every_picture():
    pages = {page: page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
    shown = {
        (page.parent / path).resolve() for page, text in pages.items() for path in re.findall(r"\]\((\S+\.svg)\)", text)
    }
    assert shown == set((ROOT / "docs" / "images").iterdir())
    assert len((ROOT / "docs" / "benchmarks.md").read_bytes()) < 44_000
