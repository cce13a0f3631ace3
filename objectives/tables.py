"""Columns of a table in a file: CSV, TSV, JSON Lines or Parquet.

Every fault of a cell names the file, the row, the column and the mend. Rows count from 1; in text
files they are lines, the header being line 1.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.errors import InputError

if TYPE_CHECKING:
    from io import TextIOWrapper

_Row = tuple[int, Mapping[str, Any]]
"""The row's place in the file, and its cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns asked for, cells as the file has them, and the place of each row in the file."""

    path: Path
    columns: Mapping[str, Sequence[Any]]
    rows: Sequence[int]

    def texts(self, column: str) -> list[str]:
        """A column of texts, none of them empty.

        Raises:
            InputError: at the first cell that is none.
        """
        return [self._text(row, column, cell) for row, cell in self._cells(column)]

    def labels(self, column: str) -> list[str]:
        """A column of words, whole numbers, true and false, each written as text.

        Raises:
            InputError: at the first cell that is none of these.
        """
        return [self._label(row, column, cell) for row, cell in self._cells(column)]

    def numbers(self, column: str) -> list[float]:
        """A column of finite numbers.

        Raises:
            InputError: at the first cell that is none.
        """
        return [self._number(row, column, cell) for row, cell in self._cells(column)]

    def _cells(self, column: str) -> Iterator[tuple[int, Any]]:
        return zip(self.rows, self.columns[column], strict=True)

    def _text(self, row: int, column: str, cell: object) -> str:
        if isinstance(cell, str) and cell.strip():
            return cell
        raise self._fault(row, column, "text", cell)

    def _label(self, row: int, column: str, cell: object) -> str:
        if isinstance(cell, bool | int) or (isinstance(cell, str) and cell.strip()):
            return str(cell)
        raise self._fault(row, column, "a word or a whole number", cell)

    def _number(self, row: int, column: str, cell: object) -> float:
        number = _as_number(cell)
        if number is None or not math.isfinite(number):
            raise self._fault(row, column, "a number", cell)
        return number

    def _fault(self, row: int, column: str, expected: str, cell: object) -> InputError:
        shown = "nothing" if cell is None or cell == "" else f"{cell!r:.60}"
        return InputError(
            f"{self.path}: row {row}, column {column!r}: must be {expected}, found {shown} "
            "(correct it, or leave the row out)"
        )


def _as_number(cell: object) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def read_table(path: Path, columns: Sequence[str]) -> Table:
    """The columns of these names.

    Args:
        path: a `.csv` or `.tsv` with a header, a `.jsonl` of one object a line, or a `.parquet`.
        columns: what its columns, or the keys of its objects, are called.

    Raises:
        InputError: when the file or a column is not there, or it is no such file.
    """
    readers: Mapping[str, Callable[[Path, Sequence[str]], Table]] = {
        ".csv": _read_csv,
        ".tsv": _read_csv,
        ".jsonl": _read_json_lines,
        ".parquet": _read_parquet,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        msg = f"{path}: must be named {', '.join(readers)} by what it holds, found {path.name!r}"
        raise InputError(msg)
    try:
        table = reader(path, columns)
    except FileNotFoundError as error:
        msg = f"{path}: there is no such file in {Path.cwd()} (correct the path)"
        raise InputError(msg) from error
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror or error} (check its permissions)"
        raise InputError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path}: is not text: byte {error.start} is not UTF-8 (save it as UTF-8)"
        raise InputError(msg) from error
    if not table.rows:
        msg = f"{path}: has no rows (name a file with data in it)"
        raise InputError(msg)
    return table


def _read_csv(path: Path, columns: Sequence[str]) -> Table:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(_csv_rows(path, file, columns))
    return _table(path, columns, rows)


csv.field_size_limit(2**31 - 1)  # a text is one cell, and may be as long as it is


def _csv_rows(path: Path, file: TextIOWrapper, columns: Sequence[str]) -> Iterator[_Row]:
    reader = csv.DictReader(
        file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True
    )
    try:
        _require_columns(path, columns, reader.fieldnames or ())
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        msg = f"{path}: line {reader.line_num + 1}: {error} (quote the cell, or save the file anew)"
        raise InputError(msg) from error


def _read_json_lines(path: Path, columns: Sequence[str]) -> Table:
    with path.open(encoding="utf-8-sig") as file:
        numbered = enumerate(file, start=1)
        rows = [(line, _object(path, line, text)) for line, text in numbered if text.strip()]
    if rows:
        _require_columns(path, columns, tuple(dict.fromkeys(key for _, row in rows for key in row)))
    return _table(path, columns, rows)


def _object(path: Path, line: int, text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        msg = f"{path}: row {line}: this is not JSON: {error.msg} (write one object a line)"
        raise InputError(msg) from error
    if not isinstance(found, dict):
        msg = f"{path}: row {line}: must be an object, found {text.strip()!r:.60} (as {{...}})"
        raise InputError(msg)
    return found


def _table(path: Path, columns: Sequence[str], rows: Sequence[_Row]) -> Table:
    cells = {name: tuple(row.get(name) for _, row in rows) for name in columns}
    return Table(path=path, columns=cells, rows=tuple(place for place, _ in rows))


def _read_parquet(path: Path, columns: Sequence[str]) -> Table:
    from pyarrow import ArrowInvalid, parquet  # type: ignore[import-untyped]

    try:
        with parquet.ParquetFile(path) as file:
            _require_columns(path, columns, file.schema_arrow.names)
            table = file.read(columns=list(columns))
    except ArrowInvalid as error:
        msg = f"{path}: is no Parquet file: {error} (write it with pyarrow.parquet)"
        raise InputError(msg) from error
    cells = {name: table.column(name).to_pylist() for name in columns}
    return Table(path=path, columns=cells, rows=range(1, table.num_rows + 1))


def _require_columns(path: Path, columns: Sequence[str], there: Sequence[str]) -> None:
    missing = [name for name in columns if name not in there]
    if missing:
        found = ", ".join(map(repr, there)) or "none"
        msg = f"{path}: has no column {missing[0]!r} (it has {found}: name one of these)"
        raise InputError(msg)
