"""Write the tables of docs/choices.md from `fedpdm.choices`: `python scripts/choices_page.py`."""

from pathlib import Path

from fedpdm.choices import AGGREGATES, ALGORITHMS, FEATURE_MAPS, LOSSES, METRICS, PENALTIES

PAGE = Path(__file__).parents[1] / "docs" / "choices.md"


def with_tables(page: str) -> str:
    """Fill in the tables between their marks."""
    tables = (("algorithm", ALGORITHMS), ("algorithm", AGGREGATES), ("problem", LOSSES), ("problem", PENALTIES))
    tables += (("data", FEATURE_MAPS), ("", METRICS))
    for section, table in tables:
        begin, end = f"<!-- {table.kind}: begin -->", f"<!-- {table.kind}: end -->"
        before, _, rest = page.partition(begin)
        page = "\n".join([before + begin, "", *table.markdown(section), "", end + rest.partition(end)[2]])
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
