"""Which processors MKL is slow on, and exponentials by powers of two."""

from __future__ import annotations

import pytest
import torch

from dprec_kernels import exponentials, processor
from dprec_kernels.exponentials import exp_


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


@pytest.fixture
def by_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exponentials, "mkl_is_slow", lambda: True)
    monkeypatch.setattr(exponentials, "FAST", frozenset({torch.backends.cpu.get_cpu_capability()}))


@pytest.mark.usefixtures("by_powers_of_two")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_are_those_of_float64(dtype: torch.dtype) -> None:
    values = torch.linspace(-80, 8, 100_003, dtype=dtype)
    exact = values.double().exp()
    off = (exp_(values.clone()).double() / exact - 1).abs()
    assert (off <= torch.finfo(dtype).eps * (1 + values.double().abs())).all()


@pytest.mark.usefixtures("by_powers_of_two")
def test_exponentials_of_what_is_not_finite_and_of_the_largest_are_those_of_torch() -> None:
    values = torch.tensor([float("-inf"), float("inf"), float("nan"), -200.0, 200.0, 0.0])
    assert torch.equal(exp_(values.clone()).nan_to_num(nan=7.0), values.exp().nan_to_num(nan=7.0))


@pytest.mark.usefixtures("by_powers_of_two")
def test_no_exponential_of_a_number_up_to_zero_is_above_one() -> None:
    values = -torch.cat([torch.logspace(-45, 2, 1 << 18), torch.rand(1 << 18)])
    assert float(exp_(values).max()) <= 1.0


def test_other_types_and_processors_keep_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(1 << 14)
    with monkeypatch.context() as changed:
        changed.setattr(exponentials, "mkl_is_slow", lambda: False)
        assert torch.equal(exp_(values.clone()), values.exp())
    monkeypatch.setattr(exponentials, "mkl_is_slow", lambda: True)
    small = values.bfloat16()
    assert torch.equal(exp_(small.clone()), small.exp())
