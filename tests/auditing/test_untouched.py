from __future__ import annotations

import torch
from torch import Tensor

from dprec.auditing.eana import untouched_rows
from dprec.data import Sequences
from dprec.models import DualEncoder
from dprec.training.callback import Privacy
from tests.auditing.support import noise_on_touched_rows_only
from tests.privacy.support import data, trainer


def trained(module: Sequences, embedding_aware: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model = DualEncoder(module.items, dim=4, max_length=9, negatives=2, optimizer="sgd", weight_decay=0.0)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    # Without the self-check, which would stop the engine that is broken on purpose.
    run = trainer(Privacy(noise_multiplier=1.0, verify=0.0), max_steps=2)
    if embedding_aware:
        with noise_on_touched_rows_only():
            run.fit(model, module)
    else:
        run.fit(model, module)
    return start, dict(model.state_dict())


def test_a_private_run_leaves_no_row_as_it_was_and_embedding_aware_noise_leaves_those_nobody_met() -> None:
    module = data(synthetic_items=400, synthetic_users=20, batch_size=20, min_events=0)
    assert not any(untouched_rows(*trained(module, embedding_aware=False), module.items).values())
    start, end = trained(module, embedding_aware=True)
    kept = untouched_rows(start, end, module.items)["own_context.weight"]
    # A history is read up to the item before its last, and the last nine of them.
    read = {int(item) for u in range(20) for item in module.training.of(u)[:-1][-9:]}
    assert kept == sorted(set(range(1, module.items)) - read)


def test_one_changed_bit_is_a_change() -> None:
    start = {"table": torch.ones(3, 2)}
    end = {"table": torch.ones(3, 2)}
    end["table"][1, 1] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    assert untouched_rows(start, end, rows=3) == {"table": [2]}
