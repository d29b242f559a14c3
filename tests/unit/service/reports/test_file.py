"""The audit's file in a spreadsheet."""

import csv
import io
from itertools import product

from service.reports.queries import _cell, _table

SIGNS = "=+-@＝＋－＠﹦﹢﹣﹫"


BEFORE = ["", " ", "\t", "\r", "\n", "DSR;", "DSR; ", 'DSR;"', "a\tb\t", "DSR|", "a\r\n"]


def test_no_cell_is_a_formula_whatever_the_reader_splits_at() -> None:
    for sign, before, delimiter in product(SIGNS, BEFORE, ",;\t|"):
        text = _table([["1", _cell(f"{before}{sign}1+1"), "end"]]).decode()
        for line in text.splitlines():
            for cell in next(csv.reader(io.StringIO(line), delimiter=delimiter)):
                assert cell.strip(' \t\r\n"')[:1] not in SIGNS or not cell.strip(' \t\r\n"'), (before, line, cell)


def test_all_other_text_stays_as_it_is() -> None:
    for text in ("DSR-17", "a;b", "ålesund 39", "a=b", "3 - 2", "a, -b", ""):
        assert _cell(text) == text
    assert _cell(-1.5) == "-1.5"
    assert _cell(None) == ""
