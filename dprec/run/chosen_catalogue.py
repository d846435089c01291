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
    """Choose the items if the data needs it, and enter the choice in the ledger; a resumed run keeps its items."""
    if not getattr(data, "awaits_catalogue", False):
        return
    if checkpoint is not None:
        data.choose(checkpoint["dprec"]["catalogue"])
        if privacy is not None:
            ledger = Ledger()
            ledger.load_state_dict(checkpoint["dprec"]["guarantee"])
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
