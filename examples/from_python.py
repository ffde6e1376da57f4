"""A cluster that a Python program starts, watches and judges.

    python examples/from_python.py

The program launches two workers of mwms_custom_loop.py, prints what they report while they train, and takes the accuracy from
what they have written. It imports no TensorFlow itself, and could as well be a notebook, a test or a search for hyperparameters.
"""

import argparse
import pathlib
import re
import sys

import orchestrator

HERE = pathlib.Path(__file__).parent


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    with orchestrator.launch(
        HERE / "mwms_custom_loop.py", workers=arguments.workers, args=["--epochs", arguments.epochs], timeout=600
    ) as run:
        for event in run.events:
            # A task also reports what it reads, which may come before its first step.
            if event["event"] == "task_reported" and event["task"] == "worker-0" and "step" in event["values"]:
                print(f"{run.run_id}: step {event['values']['step']}", flush=True)
        result = run.wait()

    result.check()  # raises the report of the first failure, if there was one
    accuracies = {task: float(re.search(r"test accuracy (.*)", run.logs(task))[1]) for task in result.tasks}
    print(f"steps {result.reports['worker-0']['step']}, all in {result.run_dir}")
    print(f"test accuracy {min(accuracies.values()):.2f}")
    if len(set(accuracies.values())) > 1:
        sys.exit(f"workers that train one model differ: {accuracies}")


if __name__ == "__main__":
    main()
