import os
import signal
import subprocess
import sys
from functools import partial

import psutil
import pytest
import torch

from objectives.image_classifier import ImageClassifier
from objectives.language_model import LanguageModel
from search.errors import InputError
from search.loading import MadeBatches, made_by_workers
from search.objective import Split
from search.training import TrainingRun
from search.training_params import TrainingParams

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
CPU = torch.device("cpu")
SMALL = {"width": 16, "heads": 2, "depth": 1, "sequence_length": 16, "batch_size": 4}


def numbered(count, made=None):
    """Batches with their number, the numbers that were made noted."""
    for number in range(count):
        if made is not None:
            made.append(number)
        yield {"number": torch.tensor([number])}


def numbers(batches):
    return [batch["number"].item() for batch in batches]


def batch_of(number):
    return {"number": torch.tensor([number]), "process": torch.tensor([os.getpid()])}


@pytest.fixture(scope="module")
def language_model():
    return LanguageModel(held_out_tokens=2_000, evaluation_context=64)


@pytest.fixture(scope="module")
def image_classifier():
    return ImageClassifier()


class TestSameBatches:
    @pytest.mark.parametrize("workers", [0, 1, 2, 3])
    @pytest.mark.parametrize("count", [0, 1, 2, 7])
    def test_in_the_same_order(self, workers, count):
        made = made_by_workers(numbered(count), workers=workers, pinned=False)
        assert numbers(made) == list(range(count))

    @pytest.mark.parametrize("workers", [1, 2, 3])
    def test_of_objectives(self, language_model, image_classifier, workers):
        params = {"batch_size": 4, "rotation": 10.0, "sequence_length": 16}
        for objective in (language_model, image_classifier):
            given = partial(objective.data, params, Split.TRAIN, seed=3, num_tokens=67)
            one, other = (
                list(given()),
                list(made_by_workers(given(), workers=workers, pinned=False)),
            )
            torch.testing.assert_close(other, one, rtol=0, atol=0)

    @pytest.mark.parametrize("chosen", [{"workers": 2}, {"workers": 1, "prefetch": 2}])
    def test_so_the_same_is_learned(self, language_model, chosen):
        results = []
        for wanted in ({}, chosen):
            params = {**SMALL, "dropout": 0.1, **wanted}
            run = TrainingRun(language_model, params, num_tokens=300, device=CPU)
            losses = []
            while not run.done:
                losses.append(run.step().loss.item())
            results.append((losses, run.evaluate()))
        assert results[0] == results[1]


class TestShares:
    def test_batches_made_by_themselves_are_made_once(self):
        made = list(made_by_workers(MadeBatches(batch_of, range(6)), workers=2, pinned=False))
        assert numbers(made) == list(range(6))
        processes = [batch["process"].item() for batch in made]
        assert processes == processes[:2] * 3
        assert len({*processes, os.getpid()}) == 3

    def test_without_workers_they_are_an_iterator_like_any_other(self):
        assert numbers(MadeBatches(batch_of, range(3))) == [0, 1, 2]

    def test_no_batch_is_made_here(self):
        made = []
        list(made_by_workers(numbered(4, made), workers=1, pinned=False))
        assert made == []


class TestEnd:
    def test_an_error_comes_where_its_batch_would_have(self):
        def failing(number):
            if number == 3:
                msg = "no such image"
                raise InputError(msg)
            return batch_of(number)

        made = made_by_workers(MadeBatches(failing, range(6)), workers=2, pinned=False)
        assert [next(made)["number"].item() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(InputError, match=r"^no such image$"):
            next(made)

    def test_twenty_runs_leave_nothing_behind(self, language_model):
        process = psutil.Process()
        before = set(process.children())
        open_files = []
        for _ in range(20):
            run = TrainingRun(
                language_model, {**SMALL, "workers": 2}, num_tokens=10_000, device=CPU
            )
            run.step()
            del run
            open_files.append(process.num_fds())
        assert set(process.children()) <= before
        assert open_files[-1] <= open_files[1]

    def test_workers_end_with_a_process_that_is_killed(self):
        code = """
import itertools, torch
from search.loading import made_by_workers
batches = ({"number": torch.tensor([n])} for n in itertools.count())
made = made_by_workers(batches, workers=2, pinned=False)
next(made)
print("ready", flush=True)
input()
"""
        with subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout.readline() == b"ready\n"
            workers = psutil.Process(process.pid).children()
            assert len(workers) == 2
            process.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert alive == []


def test_workers_have_no_part_in_the_budget():
    code = """
import resource, torch
from search.loading import made_by_workers
def batches():
    yield {"limit": torch.tensor([resource.getrlimit(resource.RLIMIT_DATA)[0]])}
soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
resource.setrlimit(resource.RLIMIT_DATA, (2**40, hard))
(batch,) = made_by_workers(batches(), workers=1, pinned=False)
print(batch["limit"].item() == hard)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"True\n"


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"workers": -1}, "workers must not be negative"),
        ({"workers": 101}, "workers must be at most 100"),
    ],
)
def test_what_no_machine_has_is_refused(chosen, told):
    with pytest.raises(ValueError, match=told):
        TrainingParams.of(chosen)
