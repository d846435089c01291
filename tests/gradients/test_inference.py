"""What torch.inference_mode has made, and a linear map meets: it has no version that would tell of a change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dprec.gradients.clipping import Clipping
from tests.one_micro_batch import add_clipped, one_by_one

CLIPPING = Clipping("auto-v", 1.0)
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda frozen: frozen,
    "transposed": lambda frozen: frozen.transpose(1, 2),
    "expanded": lambda frozen: frozen[:, :1].expand(-1, 4, -1),
}


USES: dict[str, Callable[[nn.Linear, Tensor], Tensor]] = {
    "a layer": lambda layer, x: layer(x),
    "a product": lambda layer, x: x @ layer.weight.T + layer.bias,
    "addmm": lambda layer, x: torch.addmm(layer.bias, x.flatten(1)[:, :4], layer.weight.T),
}


@pytest.mark.filterwarnings("error")  # users are not taken one by one
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_features_are_inputs_as_others_are(form: str, use: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, encoder, x = nn.Linear(4, 3).to(dtype), nn.Linear(4, 4).to(dtype), torch.randn(5, 4, 4).to(dtype)
    parameters = dict(layer.named_parameters())

    def losses(batch: Tensor, copy: bool = False) -> Tensor:
        with torch.inference_mode():
            frozen = FORMS[form](encoder(batch))
        return USES[use](layer, frozen.clone() if copy else frozen).float().square().flatten(1).sum(1)

    found = {name: torch.zeros_like(value, dtype=torch.float32).detach() for name, value in parameters.items()}
    add_clipped(found, parameters, losses, x, CLIPPING)
    exact = one_by_one(parameters, lambda batch: losses(batch, copy=True), x, CLIPPING)
    for name, total in exact.items():
        torch.testing.assert_close(found[name].double(), total, rtol=0, atol=1e-5 if dtype == torch.float32 else 3e-2)
