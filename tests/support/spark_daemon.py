"""Spark's daemon of Python workers, which imports once what each worker needs: seconds of processor for each."""

import gc

from pyspark.daemon import manager

if __name__ == "__main__":
    gc.freeze()  # a worker collects garbage after each task
    manager()
