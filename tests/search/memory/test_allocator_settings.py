"""The allocator's settings as torch reads them, and what it would refuse, refused with a reason."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search.errors import InputError
from search.memory.allocator_settings import (
    AllocatorSettings,
    allocator_settings_of,
    parse_allocator_settings,
)
from search.units import MIB


def test_nothing_set_is_torch_as_it_comes():
    assert parse_allocator_settings("") == allocator_settings_of({}) == AllocatorSettings()


def test_every_setting_is_read():
    text = (
        "backend:native, max_split_size_mb : 128,max_non_split_rounding_mb:64,"
        "large_segment_size_mb:40,garbage_collection_threshold:.8,expandable_segments:True,"
        "per_process_memory_fraction:0.5,pinned_num_register_threads:8,roundup_power2_divisions:4,"
    )
    assert parse_allocator_settings(text) == AllocatorSettings(
        large_segment_bytes=40 * MIB,
        max_split_bytes=128 * MIB,
        max_non_split_rounding_bytes=64 * MIB,
        roundup_power2_divisions=(4,) * 16,
        garbage_collection_threshold=0.8,
        expandable_segments=True,
        per_process_memory_fraction=0.5,
    )


def test_the_slack_of_oversize_blocks_follows_the_large_segment():
    assert parse_allocator_settings("large_segment_size_mb:40").max_non_split_rounding_bytes == (
        40 * MIB
    )


@pytest.mark.parametrize(
    ("text", "divisions"),
    [
        # 256 MiB is interval 8, 512 interval 9; the first number counts below too, > from 10 on.
        ("[256:1,512:2,>:8]", (1,) * 9 + (2,) + (8,) * 6),
        ("[64:8,256:4,1024:4,>:1]", (8,) * 7 + (0, 4, 0, 4) + (1,) * 5),
        ("[>:4]", (0,) + (4,) * 15),  # > alone begins behind the first interval
        ("[1:2]", (2,) + (0,) * 15),
        ("[65536:2]", (2,) * 16),  # beyond the last interval: the last
        ("[]", (0,) * 16),
        ("[4:0,>:2,]", (0, 0, 0) + (2,) * 13),
    ],
)
def test_divisions_by_interval(text, divisions):
    settings = parse_allocator_settings(f"roundup_power2_divisions:{text}")
    assert settings.roundup_power2_divisions == divisions


REFUSED = {
    "max_split_size_mb:19": "max_split_size_mb: must be at least 20 and below .*, found 19",
    "large_segment_size_mb:40,max_split_size_mb:30": "must be at least 40",
    "max_non_split_rounding_mb:19": "must be at least 20",
    "large_segment_size_mb:10": "must be at least 11",
    "max_split_size_mb:x": "must be a whole number, found 'x'",
    "max_split_size_mb": "expected 'name:value' with commas between, found 'max_split_size_mb'",
    "max_split_size_mb:": "expected 'name:value'",
    "garbage_collection_threshold:1.0": "must be above 0 and below 1, found 1.0",
    "garbage_collection_threshold:0": "must be above 0",
    "garbage_collection_threshold:nan": "must be above 0",
    "garbage_collection_threshold:x": "must be a number from 0 to 1, found 'x'",
    "expandable_segments:true": "must be True or False, found 'true'",
    "roundup_power2_divisions:3": "must be a power of two, found 3",
    "roundup_power2_divisions:0": "must be a power of two, found 0",
    "roundup_power2_divisions:[256:3]": "must be a power of two or 0, found 3",
    "roundup_power2_divisions:[300:1]": "must be a power of two, found 300",
    "roundup_power2_divisions:[256:1": "expected 'name:value'",
    ",": "expected 'name:value'",
}
REFUSED_WHERE_TORCH_MISREADS = {
    "max_split_size_mb,30": "expected 'name:value'",
    "max_split_size_mb:30;expandable_segments:True": "expected 'name:value'",
    "max_split_size_mb:20x": "must be a whole number",
    "max_split_size_mb:-1": "must be a whole number",
    "max_split_size_mb:17592186044416": "below 17592186044416",
    "roundup_power2_divisions:[64:8:256:4]": "must be a whole number",
    "garbage_collection_threshold:0.5x": "must be a number",
    "max_split_size_mb:30,max_split_size_mb:40": "max_split_size_mb is given twice",
}
REFUSED_BY_CUDA_ALONE = {
    "max_split_size:30": "no setting of the allocator .did you mean 'max_split_size_mb'?",
    "per_process_memory_fraction:7": "must be from 0 to 1, found 7",
    "backend:cudaMallocAsync": "only native is simulated",
    "throw_on_cudamalloc_oom:True": "only False is simulated",
    "roundup_power2_divisions:[64]": "must be a list such as",
}


@pytest.mark.parametrize(
    ("text", "message"),
    (REFUSED | REFUSED_WHERE_TORCH_MISREADS | REFUSED_BY_CUDA_ALONE).items(),
)
def test_a_fault_names_the_setting_and_the_rule(text, message):
    with pytest.raises(InputError, match=message):
        parse_allocator_settings(text)


def test_the_fault_names_the_variable():
    with pytest.raises(InputError, match=r"^PYTORCH_CUDA_ALLOC_CONF: max_split_size_mb: must be"):
        allocator_settings_of({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:1"})


def test_no_cache_at_all_is_refused():
    with pytest.raises(InputError, match="memory without a cache is not simulated"):
        allocator_settings_of({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    assert allocator_settings_of({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}) == AllocatorSettings()


@pytest.fixture(scope="module")
def torch_reads():
    """Whether torch takes a text; the settings are what they were when the test is over.

    They are the process's own, so not where a CUDA allocator would follow them.
    """
    if torch.cuda.is_available():
        pytest.skip("would change the settings of the CUDA allocator of this process")
    before = torch._C._accelerator_getAllocatorSettings()

    def reads(text):
        torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
        try:
            torch._C._accelerator_setAllocatorSettings(text)
        except (ValueError, RuntimeError):
            return False
        return True

    yield reads
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
    torch._C._accelerator_setAllocatorSettings(before)


@pytest.mark.parametrize("text", REFUSED)
def test_torch_refuses_it_too(torch_reads, text):
    assert not torch_reads(text)


MEGABYTES = st.sampled_from(
    ["0", "10", "11", "19", "20", "21", "40", "128", "4096", "", "x", "1.5"]
)
NUMBERS = st.sampled_from(["0", "1", "2", "3", "4", "8", "16", ""])
OPTIONS = st.one_of(
    st.tuples(
        st.sampled_from(
            ["max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb"]
        ),
        MEGABYTES,
    ),
    st.tuples(
        st.just("garbage_collection_threshold"),
        st.sampled_from(["0", "0.0", "1", ".5", "0.99", "1e-3", "-0.5", "nan", "inf"]),
    ),
    st.tuples(st.just("expandable_segments"), st.sampled_from(["True", "False", "1", "true"])),
    st.tuples(
        st.just("roundup_power2_divisions"),
        NUMBERS
        | st.lists(
            st.tuples(st.sampled_from(["1", "2", "256", "300", "0", "131072", ">"]), NUMBERS).map(
                ":".join
            ),
            max_size=4,
        ).map(lambda entries: f"[{','.join(entries)}]"),
    ),
)


@given(st.lists(OPTIONS, max_size=4, unique_by=lambda option: option[0]))
def test_what_torch_refuses_is_refused_and_what_it_takes_is_read(torch_reads, options):
    text = ",".join(map(":".join, options))
    try:
        parse_allocator_settings(text)
    except InputError:
        is_read = False
    else:
        is_read = True
    assert is_read == torch_reads(text)


@pytest.mark.parametrize("cuda", [None, "", "max_split_size_mb:40"])
def test_torch_prefers_the_same_variable(cuda):
    environment = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:30"}
    if cuda is not None:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = cuda
    expected = environment["PYTORCH_ALLOC_CONF"] if cuda is None else cuda
    assert allocator_settings_of(environment) == parse_allocator_settings(expected)


def test_torch_prefers_the_older_variable():
    program = "import torch; print(torch._C._accelerator_getAllocatorSettings())"
    environment = {
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:30",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:40",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "max_split_size_mb:40"
