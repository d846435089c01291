"""Click logs that are often used, by the names of their columns; every setting of a recipe goes before a preset's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dprec.data.click_logs.named.columns import ClickColumns, RowsOrValues

LABEL = "clicked"  # the label's column where none is named


@dataclass(frozen=True)
class NamedSettings:
    """The settings of `dprec.data.Clicks` that name columns; None: not given."""

    label_column: str | None = None
    user_column: str | None = None
    time_column: str | None = None
    categories: Mapping[str, RowsOrValues] | None = None
    bags: Mapping[str, int] | None = None
    numbers: Mapping[str, Any] | None = None
    where: str | None = None
    clicked: float | list[str] | None = None
    header: list[str] | None = None
    days: int | None = None

    def before(self, preset: NamedSettings) -> NamedSettings:
        """These settings, and those of the preset that are not among them."""
        pairs = ((getattr(self, one.name), getattr(preset, one.name)) for one in fields(self))
        return NamedSettings(*(other if given is None else given for given, other in pairs))

    @property
    def of_columns(self) -> list[str]:
        """The settings that are given and name columns or what is in them."""
        return [one.name for one in fields(self) if getattr(self, one.name) and one.name != "days"]

    def columns(self, scale: float, format: str) -> ClickColumns:
        return ClickColumns(
            self.label_column or LABEL,
            self.user_column,
            self.time_column,
            self.categories or {},
            self.bags or {},
            self.numbers or {},
            scale,
            format,
            self.where,
            self.clicked,
            self.header,
        )


PRESETS: dict[str, NamedSettings] = {
    # The rows are in time order. Ten days, and no column that tells one person from others.
    "avazu": NamedSettings(
        label_column="click",
        categories={
            **{"C1": 16, "banner_pos": 16, "site_id": 5_000, "site_domain": 8_000, "site_category": 64},
            **{"app_id": 10_000, "app_domain": 1_000, "app_category": 64},
            **{"device_id": 200_000, "device_ip": 500_000, "device_model": 10_000},
            **{"device_type": 16, "device_conn_type": 16, "C14": 4_000, "C15": 16, "C16": 16},
            **{"C17": 1_000, "C18": 16, "C19": 128, "C20": 256, "C21": 128},
        },
        days=10,
    ),
    # A view counts as 0. The file has some times outside of its nine days, of which Beijing's midnight is the border.
    "taobao": NamedSettings(
        label_column="behavior",
        user_column="user_id",
        time_column="timestamp",
        categories={"item_id": 1_000_000, "category_id": 10_000},
        where="timestamp >= 1511539200 AND timestamp < 1512316800",
        clicked=["buy", "cart", "fav"],
        header=["user_id", "item_id", "category_id", "behavior", "timestamp"],
        days=9,
    ),
    # ratings.dat, ratings.csv or u.data
    "movielens-clicks": NamedSettings(
        label_column="rating",
        user_column="user_id",
        time_column="timestamp",
        categories={"movie_id": 100_000},
        clicked=4,
        header=["user_id", "movie_id", "rating", "timestamp"],
    ),
}
NAMED = ("clicks", *PRESETS)  # data sets whose columns have names
