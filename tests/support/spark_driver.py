"""The driver of a stream on a small cluster, as a process that a test may kill: `python -m tests.support.spark_driver`.

Arguments: the folder of the job, whose CSV files are in `data`, the master, and the name for `job_of`. It ends when
all files are learned.
"""

import sys
import tempfile
from pathlib import Path

from streamdp.spark import learn_stream
from tests.support.spark import job_of, start

COLUMNS = "delay string, origin string, late string, tail string, eps string"


def main() -> None:
    folder, master, estimator = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    speculation = {
        "spark_speculation": "true",
        "spark_speculation_multiplier": "1.01",
        "spark_speculation_quantile": "0.1",
        "spark_speculation_minTaskRuntime": "1ms",
        "spark_speculation_interval": "10ms",
        "spark_executor_maxNumFailures": "1000",
        "spark_deploy_maxExecutorRetries": "-1",
        "spark_task_maxFailures": "1000",
        "spark_stage_maxConsecutiveAttempts": "1000",
    }
    spark = start(Path(tempfile.mkdtemp(dir=folder)), master, **speculation)
    reader = spark.readStream.schema(COLUMNS).option("header", True).option("maxFilesPerTrigger", 1)
    stream = reader.csv(str(folder / "data"))
    print("up", flush=True)
    now = {"availableNow": True}
    with learn_stream(
        stream,
        job_of(folder / "job.db", estimator),
        checkpoint=str(folder / "checkpoint"),
        trigger=now,
        publish=[lambda snapshots: print(f"batch {snapshots[0].position['batch']}", flush=True)],
    ) as learner:
        learner.wait()
    print("end", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
