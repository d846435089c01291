"""Which processors MKL is slow on."""

from __future__ import annotations

import pytest
import torch

from dprec_kernels import processor


@pytest.mark.parametrize(
    ("described", "wide", "mkl", "slow", "narrow"),
    [
        ("vendor_id\t: AuthenticAMD", True, True, True, True),
        ("vendor_id\t: GenuineIntel", True, True, False, False),
        ("vendor_id\t: AuthenticAMD", False, True, True, False),
        ("vendor_id\t: AuthenticAMD", True, False, False, False),
        ("arm", False, False, False, False),
    ],
)
def test_mkl_is_slow_on_amds_processors_and_narrow_on_those_with_wide_instructions(
    monkeypatch: pytest.MonkeyPatch, described: str, wide: bool, mkl: bool, slow: bool, narrow: bool
) -> None:
    monkeypatch.setattr(processor, "_described", lambda: described)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: wide)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(processor, "mkl_is_slow", processor.mkl_is_slow.__wrapped__)
    assert processor.mkl_is_slow() == slow
    assert processor.mkl_is_narrow.__wrapped__() == narrow
