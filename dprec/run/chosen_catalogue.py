"""The items of a run that chooses them itself: once, before anything else reads the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dprec.accounting.ledger import Ledger
from dprec.accounting.private_catalogue import PrivateCatalogue
from dprec.data.logs.histories import visits
from dprec.errors import UserError
from dprec.training.callback import Privacy


def settle_catalogue(data: Any, privacy: Privacy | None, checkpoint: Mapping[str, Any] | None = None) -> None:
    """Choose the items if the data needs it, and enter the choice in the ledger; a resumed run keeps its items.

    `checkpoint` is what the run wrote before, by `dprec.fit` or by a trainer of one's own: what torch.load returns.
    """
    if not getattr(data, "awaits_catalogue", False):
        return
    if checkpoint is not None:
        items, spent = _kept(checkpoint, type(data).__qualname__, privacy)
        data.choose(items)
        if privacy is not None:
            ledger = Ledger()
            ledger.load_state_dict(spent)
            privacy.begin_with(PrivateCatalogue.recorded(ledger.events), on_record=True)
        return
    if privacy is None:
        raise UserError("data.catalogue is private, but no privacy block pays for it: leave it out, or add one")
    found = data.found
    users = len(found.offsets) - 1
    choice = privacy.private_catalogue(int(np.count_nonzero(np.diff(found.offsets))), data.catalogue_share)
    privacy.begin_with(choice.events)
    chosen = choice.choose(visits(found), users, len(found.item_ids), privacy.noise)
    data.choose([found.item_ids[place] for place in chosen])


def _kept(checkpoint: Mapping[str, Any], data: str, privacy: Privacy | None) -> tuple[list[str], Mapping[str, Any]]:
    """The items that a run chose, and its ledger."""
    ours = checkpoint.get("dprec")
    if ours is not None:
        return ours["catalogue"], ours["guarantee"]
    try:
        own = {} if privacy is None else checkpoint["callbacks"][privacy.state_key]["ledger"]
        return checkpoint[data]["catalogue"], own
    except (KeyError, TypeError):
        raise UserError("the checkpoint's run has chosen no items: give the checkpoint of one that did") from None
