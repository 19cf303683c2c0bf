"""The live screen of ``standby top``."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Resize
from textual.widgets import Footer, Static

from standby.cli.client import Client
from standby.cli.top import cells
from standby.cli.top.picture import Picture
from standby.cli.top.source import Lost, Told, listen
from standby.cli.top.table import Rows
from standby.domain.errors import StandbyError

# Where everything has its place at once.
WIDE: Final = (150, 34)
VIEWS: Final = ("endpoints", "instances", "nodes", "decisions")


class Top(App[StandbyError]):
    """``overview`` is what the feed has said first; ``open_client`` opens a connection for the stream.

    Ends with None, or with the error that no new try can mend.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #banner { display: none; height: auto; background: $error; color: $text; padding: 0 1; }
    #banner.shown { display: block; }
    #heading { height: 2; padding: 0 1; }
    #views { height: 1fr; layout: vertical; }
    Rows { display: none; height: 1fr; border-top: solid $primary; border-title-color: $text; }
    Rows.chosen { display: block; }
    Rows:focus { border-top: heavy $accent; }
    #decisions { display: block; height: 7; }
    #decisions.chosen { height: 1fr; }
    .wide #views { layout: grid; grid-size: 2 3; grid-rows: 3fr 2fr 2fr; }
    .wide Rows { display: block; height: 100%; }
    .wide #endpoints, .wide #decisions { column-span: 2; }
    .one-tenant #nodes { display: none; }
    .one-tenant.wide #instances { column-span: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("s", "sort", "Sort"),
        Binding("r", "backwards", "Reverse"),
        Binding("1", "choose('endpoints')", "Endpoints"),
        Binding("2", "choose('instances')", "Instances"),
        Binding("3", "choose('nodes')", "Nodes"),
        Binding("4", "choose('decisions')", "Decisions"),
    ]

    def __init__(
        self, overview: Mapping[str, Any], open_client: Callable[[], Client], every_s: float, *, all_tenants: bool = False
    ) -> None:
        super().__init__()
        self.picture = Picture()
        self.picture.take("overview", overview)
        self._open_client = open_client
        self._every_s = every_s
        self._all = all_tenants
        self._chosen = VIEWS[0]
        self._lost: Lost | None = None
        self._heard_at = time.monotonic()

    def compose(self) -> ComposeResult:
        """Heading, the four tables, keys."""
        yield Static(id="banner", markup=False)
        yield Static(id="heading", markup=False)
        with Container(id="views"):
            yield Rows(cells.endpoints(with_tenant=self._all), id="endpoints")
            yield Rows(cells.instances(), id="instances")
            yield Rows(cells.nodes(), id="nodes")
            yield Rows(cells.decisions(), id="decisions")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Show what is known, and listen."""
        self.title = "standby top"
        self.screen.set_class(not self.picture.facts["admin"], "one-tenant")
        for view in VIEWS:
            self._table(view).border_title = view
        self.action_choose(self._chosen)
        self._draw()
        self.set_interval(1.0, self._draw_banner)
        self.run_worker(self._listen(), exit_on_error=True)
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Otherwise the terminal would be left as the screen needs it.
            asyncio.get_running_loop().add_signal_handler(number, self.exit)

    def on_resize(self, event: Resize) -> None:
        """All tables at once where there is room for them."""
        self.screen.set_class(event.size.width >= WIDE[0] and event.size.height >= WIDE[1], "wide")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Whether a key means anything: only administrators see nodes."""
        return self.picture.facts["admin"] or (action, parameters) != ("choose", ("nodes",))

    def action_choose(self, view: str) -> None:
        """Show a table, and let the keys be about it."""
        self._chosen = view
        for name in VIEWS:
            self._table(name).set_class(name == view, "chosen")
        self._table(view).focus()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._focused().sort_by_next()

    def action_backwards(self) -> None:
        """Turn the order round."""
        self._focused().sort_backwards()

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            async for heard in listen(self._open_client, self._every_s, all_tenants=self._all):
                self._take(heard)
        except StandbyError as error:
            self.exit(error)

    def _take(self, heard: Told | Lost) -> None:
        if isinstance(heard, Lost):
            self._lost = heard
        else:
            self._lost, self._heard_at = None, time.monotonic()
            self.picture.take(heard.kind, heard.content)
            self._draw()
        self._draw_banner()

    def _draw(self) -> None:
        picture = self.picture
        self.query_one("#heading", Static).update(cells.heading(picture))
        for view in ("endpoints", "instances", "nodes"):
            self._table(view).show(getattr(picture, view))
        self._table("decisions").show({row["id"]: row for row in picture.decisions})

    def _draw_banner(self) -> None:
        banner = self.query_one("#banner", Static)
        banner.set_class(self._lost is not None, "shown")
        if self._lost is not None:
            age_s = time.monotonic() - self._heard_at
            banner.update(cells.literal(f"{self._lost.why}; this is {age_s:.0f} s old; trying again"))

    def _table(self, view: str) -> Rows:
        return self.query_one(f"#{view}", Rows)

    def _focused(self) -> Rows:
        return self.focused if isinstance(self.focused, Rows) else self._table(self._chosen)
