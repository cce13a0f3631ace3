import pytest

from search.trials.death import death, last_words


@pytest.mark.parametrize("limit_in_force", [False, True])
@pytest.mark.parametrize(
    ("words", "is_out_of_memory", "said"),
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'", True, "bad_alloc"),
        ("DefaultCPUAllocator: can't allocate memory", True, "can't allocate memory"),
        ("*** SIGSEGV received at time=1", False, "SIGSEGV"),
        ("bad_alloc\n*** SIGABRT received", True, "bad_alloc"),
    ],
)
def test_what_a_process_said_decides(words, is_out_of_memory, said, limit_in_force):
    found = death(last_words=words, limit_in_force=limit_in_force)
    assert found.is_out_of_memory is is_out_of_memory
    assert f"({said})" in found.message


@pytest.mark.parametrize("limit_in_force", [False, True])
def test_without_a_word_the_limit_decides(limit_in_force):
    found = death(last_words="a warning of no weight", limit_in_force=limit_in_force)
    assert found.is_out_of_memory is limit_in_force
    assert ("most likely for want of memory" in found.message) is limit_in_force


def test_finds_the_output_of_the_process_that_the_error_names(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    logs = tmp_path / "ray" / "session_1" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-abc-01000000-17.err").write_text("its last words")
    (logs / "worker-abd-01000000-170.err").write_text("another's")
    text = "The actor died unexpectedly\n\tpid: 17\n\tip: 127.0.0.1"
    assert last_words(text, "session_1") == "its last words"
    assert last_words(text, "session_2") == ""
    assert last_words("nothing", "session_1") == ""
