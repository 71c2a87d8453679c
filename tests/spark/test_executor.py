import _thread
import os
import pickle
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from omnigraph.core.executor import Executor
from omnigraph.errors import ConstraintError, SparkError
from omnigraph.ingest.executor import LocalExecutor
from omnigraph.lang import Source, compile_schema
from omnigraph.lang.catalog import Catalog
from omnigraph.spark.executor import SparkExecutor, _in_order, pack_tasks, unpack_task
from omnigraph.spark.session import in_thread, is_connect
from omnigraph.spark.worker import Work
from tests.support import steps

# The same on both


def test_results_come_in_the_order_of_the_tasks(executor: Executor) -> None:
    assert executor.run("read", steps.squared, range(20)) == [number * number for number in range(20)]


def test_no_tasks_have_no_results(executor: Executor) -> None:
    assert executor.run("read", steps.squared, []) == []


@pytest.mark.parametrize("kind, expected", [("typed", ConstraintError), ("plain", KeyError)])
def test_what_a_step_raises_arrives_as_it_was(executor: Executor, kind: str, expected: type[Exception]) -> None:
    with pytest.raises(expected) as raised:
        steps.fails(kind)
    with pytest.raises(expected) as caught:
        executor.run("read", steps.fails, [kind])

    assert type(caught.value) is type(raised.value)
    assert str(caught.value) == str(raised.value)
    notes = vars(caught.value).pop("__notes__", None)
    assert vars(caught.value) == vars(raised.value)
    assert notes is None or "in fails" in notes[0]


class Recorder:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int]] = []
        self.advances: list[tuple[int, int]] = []

    def phase(self, name: str, total_tasks: int) -> None:
        self.phases.append((name, total_tasks))

    def advance(self, tasks: int, rows: int) -> None:
        self.advances.append((tasks, rows))

    def finish(self) -> None:
        raise AssertionError("an executor does not know what is the last phase")


@pytest.mark.parametrize("fixture", [None, "spark", "connect"], ids=["local", "spark", "connect-spark"])
def test_progress_ends_at_all_tasks_and_all_rows(request: pytest.FixtureRequest, fixture: str | None) -> None:
    progress = Recorder()
    executor = SparkExecutor(request.getfixturevalue(fixture), progress) if fixture else LocalExecutor(progress)
    executor.run("read", steps.counted, range(10))
    executor.run("check", steps.squared, range(5))

    assert progress.phases == [("read", 10), ("check", 5)]
    assert sum(tasks for tasks, _ in progress.advances) == 15
    assert sum(rows for _, rows in progress.advances) == 450
    assert all(tasks >= 0 and rows >= 0 for tasks, rows in progress.advances)


# Only on Spark


def test_progress_moves_while_tasks_are_still_running(session: SparkSession, tmp_path: Path) -> None:
    class Opener(Recorder):
        """Lets the last task go on when it hears of the others."""

        def advance(self, tasks: int, rows: int) -> None:
            super().advance(tasks, rows)
            (tmp_path / "go").touch()

    progress = Opener()
    quick = [steps.OnceTask(str(tmp_path), number) for number in range(3)]
    tasks: list[steps.MeetingTask | steps.OnceTask] = [steps.MeetingTask(str(tmp_path), 0), *quick]
    SparkExecutor(session, progress).run("read", steps.meets_the_first, tasks)

    assert len(progress.advances) > 1


def test_more_tasks_than_spark_can_schedule_one_by_one_are_fine(session: SparkSession) -> None:
    numbers = range(12_000)

    assert SparkExecutor(session).run("read", steps.squared, numbers) == [number * number for number in numbers]


def test_a_task_that_fails_once_is_tried_again(session: SparkSession, tmp_path: Path) -> None:
    tasks = [steps.OnceTask(str(tmp_path / str(number)), number) for number in range(4)]

    assert SparkExecutor(session).run("write", steps.fails_once, tasks) == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 4


def test_no_task_runs_any_more_when_another_has_failed(session: SparkSession, tmp_path: Path) -> None:
    tasks: list[steps.MeetingTask | str] = [steps.MeetingTask(str(tmp_path), 0), str(tmp_path)]
    with pytest.raises(ConstraintError):
        SparkExecutor(session).run("write", steps.meets_or_fails, tasks)

    steps.ended(steps.begun(tmp_path, 1), within=2)


def test_an_error_of_any_size_arrives_whole(session: SparkSession) -> None:
    with pytest.raises(ValueError, match=r"x{300000}"):
        SparkExecutor(session).run("read", steps.fails_at_length, [300_000])


def test_an_error_that_cannot_be_pickled_is_told_in_words(session: SparkSession) -> None:
    with pytest.raises(SparkError) as caught:
        SparkExecutor(session).run("read", steps.fails, ["stubborn"])

    assert "StubbornError: no way" in str(caught.value)
    assert "steps.py" in caught.value.detail


def test_a_worker_that_dies_at_every_attempt_is_an_error_of_spark(session: SparkSession) -> None:
    with pytest.raises(SparkError, match=r"'write'.*worker") as caught:
        SparkExecutor(session).run("write", steps.dies, [1])

    assert "Py4J" not in str(caught.value)
    assert SparkExecutor(session).run("read", steps.squared, [3]) == [9]


def test_a_function_that_no_executor_could_find_is_refused(session: SparkSession) -> None:
    with pytest.raises(AssertionError, match="no function of a module"):
        SparkExecutor(session).run("read", lambda task: task, [1])


def test_a_worker_reaches_storage_as_its_driver_does_now(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = SparkExecutor(session)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4711")
    assert executor.run("read", steps.variable, ["AWS_ENDPOINT_URL"] * 2) == ["http://127.0.0.1:4711"] * 2
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert executor.run("read", steps.variable, ["AWS_ENDPOINT_URL"] * 2) == [None, None]


def test_a_worker_that_cannot_read_the_credentials_of_a_driver_uses_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "mine")

    assert list(Work(iter, "/nowhere")(iter([]))) == []
    assert os.environ["AWS_REGION"] == "mine"


def test_lance_is_never_loaded_where_workers_are_forked(session: SparkSession) -> None:
    """A worker hangs if the daemon that it is forked from has used lance."""
    assert set(SparkExecutor(session).run("read", steps.libraries_of_the_daemon, range(4))) == {(True, False)}


def test_threads_share_the_session_and_get_their_own_results(session: SparkSession) -> None:
    executor = SparkExecutor(session)
    runs = [in_thread(partial(executor.run, "read", steps.squared, [at, at + 1])) for at in range(6)]

    assert [run.result() for run in runs] == [[at * at, (at + 1) ** 2] for at in range(6)]


def test_an_interrupt_cancels_the_job_and_leaves_the_session_usable(session: SparkSession, tmp_path: Path) -> None:
    def interrupt() -> None:
        steps.begun(tmp_path, 2)
        _thread.interrupt_main()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        SparkExecutor(session).run("read", steps.meets, [steps.MeetingTask(str(tmp_path), number) for number in (1, 2)])
    interrupter.join()

    steps.ended(steps.begun(tmp_path, 2), at_least=2)
    assert is_connect(session) or list(session.sparkContext.statusTracker().getActiveJobsIds()) == []
    assert SparkExecutor(session).run("read", steps.squared, [3]) == [9]


def test_the_session_of_the_caller_stays_as_it_was(session: SparkSession) -> None:
    session.addTag("of the caller")
    before = _left(session)
    SparkExecutor(session).run("read", steps.squared, [1, 2])
    with pytest.raises(KeyError):
        SparkExecutor(session).run("read", steps.fails, ["plain"])

    assert _left(session) == before
    assert session.getTags() == {"of the caller"}
    session.removeTag("of the caller")


def _left(session: SparkSession) -> list[object]:
    if is_connect(session):
        return [session.getTags(), session.conf.getAll, list(session.client._progress_handlers)]
    context = session.sparkContext
    names = ("spark.jobGroup.id", "spark.job.description", "spark.scheduler.pool", "spark.job.interruptOnCancel")
    return [session.getTags(), session.conf.getAll, *map(context.getLocalProperty, names)]


@pytest.mark.parametrize("numbers", [[0, 1], [0, 1, 1], [0, 1, 3], [0, 1, 2, 2]])
def test_a_result_that_is_missing_or_comes_twice_is_refused(numbers: list[int]) -> None:
    rows = [Row(task=number, rows=0, result=b"") for number in numbers]
    with pytest.raises(SparkError, match="for 3 tasks in the phase 'read'"):
        _in_order("read", rows, 3)


# Packing


@dataclass(frozen=True, slots=True)
class CatalogTask:
    number: int
    catalog: Catalog | None


def test_what_all_tasks_share_is_packed_once() -> None:
    catalog = compile_schema(Source("node A { a: String @key }"))
    tasks = [CatalogTask(number, catalog) for number in range(3)]
    packed = pack_tasks(tasks)

    assert packed.common == (catalog,)
    assert max(map(len, packed.tasks)) < len(pickle.dumps(catalog)) / 2
    assert [unpack_task(task, packed.common) for task in packed.tasks] == tasks


@pytest.mark.parametrize(
    "tasks", [[1], [1, 2], ["a", "a"], [CatalogTask(1, None), "b"], [CatalogTask(1, None), CatalogTask(1, None)]]
)
def test_any_tasks_are_unpacked_as_they_were(tasks: list[object]) -> None:
    packed = pack_tasks(tasks)

    assert [unpack_task(task, packed.common) for task in packed.tasks] == tasks
