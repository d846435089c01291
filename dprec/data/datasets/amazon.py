"""Where to find the Amazon reviews of video games. They are not downloaded: the user puts them there."""

from __future__ import annotations

from pathlib import Path

from dprec.errors import UserError

GAMES = "amazon-games"
WANTED = (
    "one file of reviews of video games, .txt with `user item` a line in time order "
    "or .csv with user,item,rating,timestamp a line, also .gz"
)
_ENDINGS = (".txt", ".csv")


def locate(folder: Path) -> Path | None:
    """The only log in a folder, None if there is none."""
    if not folder.is_dir():
        return None
    found = sorted(file for file in folder.iterdir() if file.name.removesuffix(".gz").endswith(_ENDINGS))
    if len(found) > 1:
        raise UserError(f"{folder} has several logs ({', '.join(file.name for file in found)}): set data.path to one")
    return found[0] if found else None
