from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from search.results import CurvePoint, Outcome, PredictedMemory, Trial

FINITE = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(min_size=1, max_size=8)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), FINITE, WORDS)
BYTES = st.integers(0, 2**40)
PREDICTED = st.builds(
    PredictedMemory,
    expected_bytes=BYTES,
    low_bytes=BYTES,
    high_bytes=BYTES,
    phase=WORDS,
    parts=st.dictionaries(WORDS, BYTES, max_size=3),
)
TRIALS = st.builds(
    Trial,
    number=st.integers(0, 10**6),
    params=st.dictionaries(WORDS, VALUES, max_size=4),
    outcome=st.sampled_from(Outcome),
    metrics=st.dictionaries(WORDS, FINITE, max_size=3),
    predicted=st.none() | PREDICTED,
    message=st.text(max_size=20),
    started_at=FINITE,
    duration_seconds=FINITE,
    curve=st.lists(
        st.builds(CurvePoint, name=WORDS, num_tokens=BYTES, value=FINITE), max_size=3
    ).map(tuple),
    details=st.dictionaries(WORDS, VALUES, max_size=3),
)


@given(TRIALS)
def test_a_trial_survives_json(trial):
    assert Trial.from_json(json.loads(json.dumps(trial.to_json()))) == trial
