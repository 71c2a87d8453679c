import mmap
import os
import re
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import omnigraph
from omnigraph.errors import JavaMissingError, LibraryMissingError, SparkError
from omnigraph.spark.java import ClassArchive, Java, cache_directory, find_java
from omnigraph.spark.session import in_thread, spark_session
from tests.support import steps
from tests.support.spark import PATIENCE, program, said

# Java


def _java(directory: Path, *lines: str) -> str:
    """Make a `java` that says what it is told to; return the directory it is in."""
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path.parent)


def test_without_pyspark_a_load_on_spark_names_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnigraph.spark.session._active_context", lambda: None)
    monkeypatch.setattr("omnigraph.core.extras.find_spec", lambda _: None)
    graph = omnigraph.init(str(tmp_path / "graph"), "node Person { name: String @key }")

    with pytest.raises(LibraryMissingError, match="pyspark is not installed") as caught:
        graph.load([{"type": "Person", "data": {"name": "ann"}}], mode="append", engine="spark")

    assert caught.value.library == "pyspark"
    assert "pip install 'omnigraph[spark]'" in str(caught.value.hint)
    assert len(graph.commits()) == 1


def test_java_is_found_on_the_path(tmp_path: Path) -> None:
    assert find_java({"PATH": os.environ["PATH"]}).path.endswith("java")
    noisy = _java(tmp_path, "echo 'Picked up JAVA_TOOL_OPTIONS: -Da=b' >&2", """echo 'openjdk version "21-ea"' >&2""")
    assert find_java({"PATH": noisy}).path == f"{noisy}/java"


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = _java(tmp_path, """echo 'openjdk version "17.0.1"' >&2""").removesuffix("/bin")

    assert find_java({"PATH": os.environ["PATH"], "JAVA_HOME": home}).path == f"{home}/bin/java"


@pytest.mark.parametrize(
    "lines, why, found",
    [
        (["""echo 'java version "1.8.0_292"' >&2"""], "is version 8", "8"),
        (["""echo 'openjdk version "11.0.2" 2019-01-15' >&2"""], "is version 11", "11"),
        (["echo nonsense >&2"], "is version unknown", None),
        (["exit 3"], "does not run", None),
    ],
)
def test_a_java_that_will_not_do_is_named(tmp_path: Path, lines: list[str], why: str, found: str | None) -> None:
    directory = _java(tmp_path, *lines)
    with pytest.raises(JavaMissingError) as caught:
        find_java({"PATH": directory})

    assert caught.value.message == f"Spark needs Java 17 or newer, and {directory}/java {why}"
    assert caught.value.found == found


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaMissingError, match="does not run, which is where JAVA_HOME points"):
        find_java({"PATH": os.environ["PATH"], "JAVA_HOME": str(tmp_path)})


WITHOUT_JAVA = """
import sys
from omnigraph.errors import JavaMissingError
from omnigraph.spark.session import spark_session
try:
    spark_session()
except JavaMissingError as error:
    print(error)
assert not {"pyspark", "lance", "pyarrow"} & sys.modules.keys()
"""


def test_without_java_there_is_one_clear_sentence(tmp_path: Path) -> None:
    code, out, err = said(WITHOUT_JAVA, PATH=str(tmp_path), JAVA_HOME="")

    assert (code, err) == (0, "")
    assert out == (
        "Spark needs Java 17 or newer, and there is no `java` on the PATH\n"
        "hint: install Java 17 or newer, or set JAVA_HOME to where it is; "
        'or stay in this process with --engine local or engine="local"\n'
    )


# The archive of classes


def _archive(directory: Path) -> ClassArchive:
    jars = directory / "jars"
    jars.mkdir(exist_ok=True)
    (jars / "a.jar").write_bytes(b"a")
    return ClassArchive.of(Java("java", "17"), jars, directory / "cache")


def test_one_jvm_at_a_time_makes_the_archive_and_the_next_ones_use_it(tmp_path: Path) -> None:
    archive = _archive(tmp_path)
    [making] = archive.options()
    part = archive.file.with_suffix(".part")

    assert making == f'"-XX:ArchiveClassesAtExit={part}"'
    assert archive.options() == []
    part.write_bytes(b"\0" * 100)  # not finished
    assert archive.options() == []
    part.write_bytes(b"header" + b"\0" * 94)
    assert archive.options() == [f'"-XX:SharedArchiveFile={archive.file}"']
    assert not part.exists()


def test_a_jvm_that_uses_an_archive_is_not_disturbed_by_a_new_one(tmp_path: Path) -> None:
    archive = _archive(tmp_path)
    archive.options()
    archive.file.write_bytes(b"first" * 1_000)
    archive.file.with_suffix(".part").write_bytes(b"second" * 10)
    with archive.file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        archive.options()

        assert mapped[:] == b"first" * 1_000
    assert archive.file.read_bytes() == b"second" * 10


def test_the_claim_of_a_jvm_that_was_killed_expires(tmp_path: Path) -> None:
    archive = _archive(tmp_path)
    first = archive.options()
    os.utime(archive.file.with_suffix(".part"), (time.time() - 3_600,) * 2)

    assert archive.options() == first


def test_an_archive_is_for_one_java_and_one_set_of_jars(tmp_path: Path) -> None:
    one = _archive(tmp_path)
    other_java = ClassArchive.of(Java("java", "18"), tmp_path / "jars", tmp_path / "cache")
    (tmp_path / "jars" / "b.jar").touch()
    other_jars = ClassArchive.of(Java("java", "17"), tmp_path / "jars", tmp_path / "cache")

    assert len({one.file, other_java.file, other_jars.file}) == 3


def test_only_the_archives_that_were_used_last_are_kept(tmp_path: Path) -> None:
    archive = _archive(tmp_path)
    archive.options()
    for age in range(5):
        old = archive.file.with_name(f"spark-{age}.jsa")
        old.touch()
        os.utime(old, (time.time() - 100 - age,) * 2)
    archive.file.with_suffix(".part").write_bytes(b"header")
    archive.options()

    assert {file.name for file in archive.file.parent.iterdir()} == {archive.file.name, "spark-0.jsa", "spark-1.jsa"}


def test_a_cache_that_cannot_be_written_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")

    assert _archive(tmp_path).options() == []


@pytest.mark.parametrize("variables, expected", [({"XDG_CACHE_HOME": "/x"}, "/x/omnigraph"), ({}, "omnigraph")])
def test_the_cache_is_where_users_keep_theirs(variables: dict[str, str], expected: str) -> None:
    assert str(cache_directory(variables)).endswith(expected)


# The session


def test_the_session_is_set_up_for_us(spark: SparkSession) -> None:
    conf = dict(spark.sparkContext.getConf().getAll())

    assert spark.sparkContext.master == "local[*,4]"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.scheduler.mode"] == "FAIR"
    assert spark_session().conf.get("spark.sql.session.timeZone") == "UTC"
    assert not {"spark.executor.pyspark.memory", "spark.python.daemon.module"} & conf.keys()
    assert "PYSPARK_PYTHON" not in os.environ or os.environ["PYSPARK_PYTHON"]


def test_the_active_session_of_a_thread_wins_over_another_one(spark: SparkSession) -> None:
    other = spark.newSession()
    other.createDataFrame([(1,)], "number int")  # makes it the active one, in this thread
    wrapped = SparkSession(spark.sparkContext, other._jsparkSession)

    found = spark_session()
    elsewhere = in_thread(spark_session).result()

    assert found._jsparkSession.equals(wrapped._jsparkSession)
    assert elsewhere is spark


@pytest.mark.usefixtures("spark")
def test_the_session_is_that_of_the_thread_that_asks_for_it() -> None:
    session = spark_session()

    # Asked in the JVM: pyspark remembers the session that made the last DataFrame, in whichever thread.
    active = SparkSession._get_j_spark_session_class(session._jvm).getActiveSession()

    assert active.get().equals(session._jsparkSession)


def test_a_jvm_that_crashes_leaves_its_report_in_the_temporary_directory(spark: SparkSession) -> None:
    options = spark.sparkContext.getConf().get("spark.driver.extraJavaOptions")

    assert f'"-XX:ErrorFile={tempfile.gettempdir()}/' in str(options)


def test_all_threads_get_the_same_session(spark: SparkSession) -> None:
    sessions = [started.result() for started in [in_thread(spark_session) for _ in range(4)]]

    assert all(session is sessions[0] for session in sessions)
    assert sessions[0] is spark


def test_another_master_or_other_settings_are_refused_while_it_runs(spark: SparkSession) -> None:
    assert spark_session(master=spark.sparkContext.master) is spark
    for ask in (partial(spark_session, "local[1]"), partial(spark_session, conf={"spark.task.cpus": "2"})):
        with pytest.raises(SparkError, match="running already"):
            ask()


def test_python_keeps_its_own_handler_for_ctrl_c(spark: SparkSession) -> None:
    assert spark is not None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


OWN_SESSION = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from omnigraph.errors import SparkError
from omnigraph.spark.executor import SparkExecutor
from omnigraph.spark.session import spark_session, stop_session
from tests.support import steps

for master in ("nowhere", "spark://127.0.0.1:1,127.0.0.1:2"):
    try:
        spark_session(master)
    except SparkError as error:
        print(error.message)

lean = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
mine = (
    SparkSession.builder.master("local[1]")
    .config("spark.driver.extraJavaOptions", lean)
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", sys.argv[1])
    .config("spark.eventLog.compress", "false").config("spark.ui.enabled", "false")
    .getOrCreate()
)
assert spark_session(master="local[7]", conf={"a": "b"}) is mine
os.environ["AWS_SECRET_ACCESS_KEY"] = "mum's the word"
executor = SparkExecutor(mine, operation="load")
assert executor.run("check", steps.variable, ["AWS_SECRET_ACCESS_KEY"]) == ["mum's the word"]
stop_session()
assert not mine.sparkContext._jsc.sc().isStopped()
mine.stop()
events = "".join(file.read_text() for file in Path(sys.argv[1]).rglob("*") if file.is_file())
assert "omnigraph load: check keys" in events and "MapInArrow" in events
assert "mum's" not in events
assert spark_session().sparkContext.master == "local[*,4]"
stop_session()

os.environ["PYSPARK_PYTHON"] = sys.argv[2]
bare = SparkSession.builder.master("local[1]").getOrCreate()
try:
    SparkExecutor(bare).run("read", steps.squared, [3])
except SparkError as error:
    print(error)
bare.stop()
"""
SAID = """\
Spark did not start: Master must either be yarn or start with spark, k8s, or local
no master of a Spark cluster answers at spark://127.0.0.1:1,127.0.0.1:2
Spark could not finish the phase 'read': No module named '(\\w+)'
hint: install (\\w+) where Spark runs its tasks: the dependencies of omnigraph are needed there, in the same \
versions; PYSPARK_PYTHON names the Python that runs them
"""


def test_a_session_of_a_caller_is_used_as_it_is_and_what_it_lacks_is_named(tmp_path: Path) -> None:
    """One program, because a JVM takes its time to start."""
    events, bare = tmp_path / "events", tmp_path / "python"
    events.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without its site-packages
    bare.chmod(0o755)

    code, out, err = said(OWN_SESSION, str(events), str(bare), PYSPARK_PYTHON=sys.executable)

    found = re.fullmatch(SAID, out)
    assert code == 0, err
    assert found, out
    assert found[1] == found[2]


INTERRUPTED = """
import sys
import lance, pandas
from omnigraph.spark.session import spark_session
from omnigraph.spark.executor import SparkExecutor
from tests.support import steps
try:
    SparkExecutor(spark_session()).run("read", steps.meets, [steps.MeetingTask(sys.argv[1], 1)])
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_ends_a_program_in_silence_and_leaves_no_worker_behind(tmp_path: Path) -> None:
    with program(INTERRUPTED, str(tmp_path)) as process:
        [worker] = steps.begun(tmp_path, 1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        out, err = process.communicate(timeout=PATIENCE)

        assert (process.returncode, out, err) == (130, "", "")
        steps.ended([worker])


REVIVED = """
import sys
from pathlib import Path
import lance
from omnigraph.errors import SparkError
from omnigraph.spark.session import spark_session, stop_session
from omnigraph.spark.executor import SparkExecutor
from tests.support import steps

def jvm(session):
    return session.sparkContext._gateway.proc

def maps(session):
    return Path(f"/proc/{jvm(session).pid}/maps").read_text()

maker = jvm(spark_session())
stop_session()
maker.wait()
first = spark_session()
[archive] = Path(sys.argv[1]).glob("omnigraph/*.jsa")
assert str(archive) in maps(first)
archive.chmod(0o600)
archive.write_bytes(b"no archive")
executor = SparkExecutor(first)
jvm(first).kill()
jvm(first).wait()
try:
    executor.run("read", steps.squared, [3])
except SparkError as error:
    assert str(error).startswith("Spark died in the phase 'read'"), error
    second = spark_session()
assert second is not first
assert str(archive) not in maps(second)
assert SparkExecutor(second).run("read", steps.squared, [3]) == [9]
"""


def test_a_dead_jvm_is_replaced_and_its_classes_come_from_an_archive_if_it_fits(tmp_path: Path) -> None:
    assert said(REVIVED, str(tmp_path), XDG_CACHE_HOME=str(tmp_path)) == (0, "", "")
