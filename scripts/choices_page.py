"""Write the tables of docs/choices.md from `fedpdm.choices`: `python scripts/choices_page.py`."""

from pathlib import Path

from fedpdm.choices import AGGREGATES, ALGORITHMS, FEATURE_MAPS, LOSSES, METRICS, PARTITIONS, PENALTIES, SCALINGS

PAGE = Path(__file__).parents[1] / "docs" / "choices.md"
SECTIONS = {
    "algorithm": (ALGORITHMS, AGGREGATES),
    "problem": (LOSSES, PENALTIES),
    "data": (FEATURE_MAPS, SCALINGS, PARTITIONS),
    "metrics": (METRICS,),
}


def with_tables(page: str) -> str:
    """Fill in the tables between their marks."""
    for section, table in ((section, table) for section, tables in SECTIONS.items() for table in tables):
        begin, end = f"<!-- {table.kind}: begin -->", f"<!-- {table.kind}: end -->"
        before, _, rest = page.partition(begin)
        page = "\n".join([before + begin, "", *table.markdown(section), "", end + rest.partition(end)[2]])
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
