"""A table that is told all its rows again and again, and changes only what has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.text import Text
from textual.widgets import DataTable

from standby.cli.top.cells import Column, ordered
from standby.cli.top.picture import Row

# What is longer ends with an ellipsis.
_WIDEST: Final = 200


class _Drawn(NamedTuple):
    """A row as it is drawn."""

    row: Row
    texts: list[Text]
    widths: list[int]


class Rows(DataTable[Text]):
    """Rows by name, in the order of one of the columns; the cursor stays on the row that it is on."""

    def __init__(self, columns: Sequence[Column], **attributes: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, **attributes)
        self._of = columns
        self._by, self._backwards = 0, False
        self._rows: Mapping[str, Row] = {}
        self._names: list[str] = []
        self._drawn: dict[str, _Drawn] = {}
        self._widths = [len(column.head) + 1 for column in columns]

    def on_mount(self) -> None:
        """Draw the heads."""
        self._draw_heads()

    def show(self, rows: Mapping[str, Row]) -> None:
        """Show these rows."""
        self._rows = dict(rows)
        self._draw()

    def sort_by_next(self) -> None:
        """Sort by the next column."""
        self._sort((self._by + 1) % len(self._of), backwards=False)

    def sort_backwards(self) -> None:
        """Turn the order round."""
        self._sort(self._by, backwards=not self._backwards)

    def on_data_table_header_selected(self, chosen: DataTable.HeaderSelected) -> None:
        """Sort by the column that was clicked; turn the order round where it is sorted by that."""
        self._sort(chosen.column_index, backwards=chosen.column_index == self._by and not self._backwards)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _sort(self, by: int, *, backwards: bool) -> None:
        self._by, self._backwards = by, backwards
        self.move_cursor(row=0)
        self._draw_heads()
        self._draw()

    def _draw_heads(self) -> None:
        self.clear(columns=True)
        self._names = []
        for at, (column, width) in enumerate(zip(self._of, self._widths, strict=True)):
            mark = "" if at != self._by else "▲" if self._backwards else "▼"
            head = Text(f"{column.head}{mark}", justify="right" if column.right else "left")
            self.add_column(head, key=str(at), width=width)

    def _draw(self) -> None:
        name_of = {id(row): name for name, row in self._rows.items()}
        names = [name_of[id(row)] for row in ordered(self._rows.values(), self._of[self._by], backwards=self._backwards)]
        drawn = {name: self._draw_row(name) for name in names}
        # Told to the table, which would measure every cell again for each row that comes: they only ever grow.
        widths = [max(widest) for widest in zip(self._widths, *(one.widths for one in drawn.values()), strict=True)]
        if widths != self._widths:
            self._widths = widths
            self._draw_heads()
        if names == self._names:
            self._update(drawn)
        else:
            self._fill(names, drawn)
        self._drawn = drawn

    def _draw_row(self, name: str) -> _Drawn:
        row, known = self._rows[name], self._drawn.get(name)
        if known is not None and known.row is row:
            return known
        texts = [column.cell(row) for column in self._of]
        return _Drawn(row, texts, [min(_WIDEST, text.cell_len) for text in texts])

    def _update(self, drawn: Mapping[str, _Drawn]) -> None:
        for name, now in drawn.items():
            before = self._drawn[name]
            if before is now:
                continue
            for at, (old, new) in enumerate(zip(before.texts, now.texts, strict=True)):
                if old != new or old.spans != new.spans:
                    self.update_cell(name, str(at), new)

    def _fill(self, names: Sequence[str], drawn: Mapping[str, _Drawn]) -> None:
        # Who has not chosen a row looks at the first ones, whichever they are.
        chosen = self._names[self.cursor_row] if 0 < self.cursor_row < len(self._names) else None
        left, top = self.scroll_offset
        self.clear()
        for name in names:
            self.add_row(*drawn[name].texts, key=name)
        self._names = list(names)
        if chosen is not None and chosen in drawn:
            self.move_cursor(row=self._names.index(chosen), scroll=False)
        self.scroll_to(left, top, animate=False)
