"""The processors for which batch invariance is promised."""

import pytest

from pyllmcancel.engine.batch_invariance import kernels_were_compared


@pytest.mark.parametrize(
    ("features", "compared"),
    [
        ({"SSE3", "SSSE3"}, True),
        ({"SSSE3", "AVX", "AVX2", "FMA", "F16C"}, True),
        ({"SSSE3", "AVX", "AVX2", "AVX512", "AVX512_VNNI"}, True),
        ({"SSSE3", "AVX", "AVX2", "AVX512"}, False),
        ({"SSSE3", "AVX", "AVX2", "AVX_VNNI"}, False),
        ({"SSSE3", "AVX", "AVX2", "AVX512", "AVX512_VNNI", "AMX_INT8"}, False),
        ({"SSSE3", "AVX", "F16C"}, False),
        (set(), False),
        ({"NEON", "DOTPROD"}, False),
    ],
)
def test_nothing_is_promised_for_kernels_that_were_not_compared(features: set[str], compared: bool) -> None:
    assert kernels_were_compared(features) == compared
