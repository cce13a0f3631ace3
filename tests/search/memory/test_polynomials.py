import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.memory.polynomials import EXPONENTS, maximal, monomials, sparsest, undominated

# Micro-batch size, length, waiting micro-batches: the corners of a box and a point inside.
_POINTS = np.array([[2, 3, 0], [32, 257, 0], [32, 3, 0], [2, 257, 0], [13, 101, 0]])
_AXES = (31, 255, 1)


def _coefficients(**by_name):
    """`_coefficients(bss=4, one=7)` is 4 b s^2 + 7."""
    row = [0] * len(EXPONENTS)
    for name, value in by_name.items():
        powers = (name.count("b"), name.count("s"), name.count("u"))
        row[EXPONENTS.index(powers if name != "one" else (0, 0, 0))] = value
    return tuple(row)


def _values(coefficients, points):
    return [
        sum(c * b**i * s**j * u**k for c, (i, j, k) in zip(coefficients, EXPONENTS, strict=True))
        for b, s, u in points.tolist()
    ]


class TestSparsest:
    @pytest.mark.parametrize(
        "truth",
        [
            _coefficients(one=768),
            _coefficients(bs=256),
            _coefficients(bss=16),
            _coefficients(bb=4),
            _coefficients(s=64),
            # A class token before each sample, and the targets of all positions but the first.
            _coefficients(bs=256, b=256),
            _coefficients(bs=8, b=-8),
            # Scores between all positions and a class token: b (s + 1)^2.
            _coefficients(bss=4, bs=8, b=4),
        ],
    )
    def test_finds_what_made_the_values(self, truth):
        found = sparsest(_POINTS, _values(truth, _POINTS), axes=_AXES, max_terms=3)
        assert found == [truth]

    def test_finds_nothing_where_a_length_is_padded(self):
        values = [4 * b * -(-s // 8) * 8 for b, s, _ in _POINTS.tolist()]
        assert sparsest(_POINTS, values, axes=_AXES, max_terms=3) == []

    def test_takes_no_fractions(self):
        points = _POINTS[:, [0, 1, 2]] | 1  # all odd, so that half of b s is no whole number
        values = [b * s // 2 for b, s, _ in points.tolist()]
        assert sparsest(points, values, axes=_AXES, max_terms=1) == []

    def test_gives_all_that_too_few_points_allow(self):
        # 4 to 16 and 4 to 16: twice 2 more of either size, of both or of a square.
        points = np.array([[2, 2, 0], [4, 4, 0]])
        found = sparsest(points, [4, 16], axes=(3, 3, 1), max_terms=1)
        assert found == [_coefficients(ss=1), _coefficients(bs=1), _coefficients(bb=1)]

    def test_leaves_out_powers_that_an_axis_cannot_show(self):
        points = np.array([[2, 5, 0], [4, 5, 0]])
        found = sparsest(points, [8, 16], axes=(2, 1, 1), max_terms=1)
        assert found == [_coefficients(b=4)]

    def test_finds_what_waits_where_all_micro_batches_are_of_one_size(self):
        points = np.array([[8, 32, 1], [8, 64, 4], [8, 32, 3]])
        found = sparsest(
            points, [b * s * u for b, s, u in points.tolist()], axes=(1, 2, 4), max_terms=1
        )
        assert found == [_coefficients(us=8)]

    @given(
        terms=st.dictionaries(
            st.sampled_from(["one", "b", "s", "bs", "ss", "bss", "bb", "ub", "ubs"]),
            st.integers(1, 10**6),
            min_size=1,
            max_size=2,
        )
    )
    def test_is_never_wrong_on_one_or_two_terms(self, terms):
        points = np.array([[2, 3, 1], [32, 257, 9], [32, 3, 1], [2, 257, 9], [13, 101, 4]])
        truth = _coefficients(**terms)
        found = sparsest(points, _values(truth, points), axes=(31, 255, 9), max_terms=3)
        assert found == [truth]


_SMALL = st.lists(st.lists(st.integers(-5, 5), min_size=18, max_size=18), min_size=1, max_size=12)


class TestUndominated:
    @given(rows=_SMALL, low=st.integers(0, 4), width=st.integers(0, 4))
    def test_has_the_largest_everywhere_in_the_box(self, rows, low, width):
        sums = np.array(rows)
        kept = undominated(sums, (low, low, 0), (low + width, low + width, 2))
        sizes = range(low, low + width + 1)
        points = np.array(list(itertools.product(sizes, sizes, range(3))))
        at = monomials(points)
        assert ((kept @ at).max(axis=0) == (sums @ at).max(axis=0)).all()

    def test_drops_what_is_larger_only_outside(self):
        # b^2 is below 10 b from 0 to 10.
        sums = np.array([_coefficients(bb=1), _coefficients(b=10)])
        assert len(undominated(sums, (2, 1, 0), (10, 1, 0))) == 1
        assert len(undominated(sums, (2, 1, 0), (11, 1, 0))) == 2


@given(rows=st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=15))
def test_maximal_rows_reach_all_others(rows):
    kept = {rows[index] for index in maximal(np.array(rows))}
    reached = (any(all(map(int.__ge__, top, row)) for top in kept) for row in rows)
    assert all(reached)
    pairs = itertools.permutations(kept, 2)
    assert not any(all(map(int.__ge__, top, row)) for top, row in pairs)


@given(b=st.integers(1, 512), s=st.integers(1, 32_768), u=st.integers(0, 1_000))
def test_monomials_are_exact(b, s, u):
    assert monomials(np.array([[b, s, u]]))[:, 0].tolist() == [
        b**i * s**j * u**k for i, j, k in EXPONENTS
    ]
