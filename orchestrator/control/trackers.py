"""``mlflow: true`` and ``wandb: true``: one run of a tracker for all tasks and attempts, by variables of the tasks and MLflow's REST API.

The variables are weaker than the user's. No variable turns MLflow off, so each MLflow run of a task gets the task's name as a tag
(MLFLOW_RUN_CONTEXT, mlflow/tracking/context/system_environment_context.py), and the end names the tasks that have made one of their own.
"""

from __future__ import annotations

import base64
import json
import os
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen

from worker.machine.clock import now
from worker.protocol.messages import StartTasks, TaskOrder

from ..errors import OrchError, UsageError
from ..model.state.cluster import Outcome, Verdict
from ..model.task_names import group_tasks
from ..record.run_files import read_file
from .starting import RunStart

ANSWER_S = 5.0
"""How long an answer of the server is waited for."""
STATES = {Outcome.SUCCEEDED: "FINISHED", Outcome.CANCELLED: "KILLED"}
FAILURES = (OSError, HTTPException, LookupError, TypeError, ValueError)


class Trackers:
    def __init__(self, start: RunStart) -> None:
        self._spec, self._run = start.spec, start.run
        self._env = {**os.environ, **start.spec.env}
        self._uri = self._env.get("MLFLOW_TRACKING_URI", "").rstrip("/")
        login, at, _ = self._uri.partition("://")[2].partition("/")[0].rpartition("@")
        self._login, self._server = unquote(login), self._uri.replace(login + at, "", 1) if at else self._uri
        """The user and password in the address, which the tasks get alone, and the address without them, which is shown and asked."""
        self._mlflow_run = ""

    def begin(self) -> list[str]:
        """Make the MLflow run, or go on with that of an earlier controller. Returns notes. Raises `UsageError` if there is no server."""
        notes = []
        if self._spec.wandb and "WANDB_MODE" in self._env:
            notes.append("note: --wandb: WANDB_MODE is set, so orch turns W&B off in no task: each task that calls wandb.init logs")
        if not self._spec.mlflow:
            return notes
        if "MLFLOW_RUN_ID" in self._env:
            return [*notes, "note: --mlflow: MLFLOW_RUN_ID is set, so orch neither makes an MLflow run nor closes that one"]
        if not self._uri.startswith(("http://", "https://")):
            what = f"--mlflow: MLFLOW_TRACKING_URI is {self._server or 'not set'}, and not http://SERVER: a file is for one process"
            raise UsageError(f"{what}\nfix: mlflow server --port 5000; --env MLFLOW_TRACKING_URI=http://HOST:5000")
        with suppress(*FAILURES, OrchError, RecursionError):
            self._mlflow_run = str(json.loads(read_file(self._run.path / "mlflow.json"))["run_id"])
            return notes
        try:
            tags = [{"key": "orch.run", "value": self._run.run_id}, {"key": "mlflow.source.name", "value": self._spec.program.target}]
            known = {"experiment_id": self._experiment(), "run_name": self._run.run_id, "start_time": int(1000 * now()), "tags": tags}
            self._mlflow_run = self._ask("runs/create", known)["run"]["info"]["run_id"]
        except FAILURES as error:
            notes.append(f"warning: --mlflow: {self._server} has made no run: {_describe(error)}; this run is not tracked")
            return notes
        with suppress(OSError):  # a full disk ends the run where events are recorded
            self._run.write("mlflow.json", json.dumps({"run_id": self._mlflow_run, "uri": self._server}))
        return notes

    def end(self, verdict: Verdict) -> list[str]:
        """Close the MLflow run with the result. Returns what is odd."""
        if not self._mlflow_run:
            return []
        run, state = self._run.run_id, STATES.get(verdict.outcome, "FAILED")
        odd = f"may not show the end of the MLflow run {self._mlflow_run}"
        try:
            self._ask("runs/update", {"run_id": self._mlflow_run, "status": state, "end_time": int(1000 * now())})
            self._ask("runs/set-tag", {"run_id": self._mlflow_run, "key": "orch.exit_code", "value": str(verdict.exit_code)})
            odd = "does not say which tasks made runs of their own"
            places = [each["experiment_id"] for each in self._ask("experiments/search", {"max_results": 1000})["experiments"]]
            asked = {"experiment_ids": places, "filter": f"tags.`orch.run` = '{run}'", "max_results": 1000}
            others = [each for each in self._ask("runs/search", asked)["runs"] if each["info"]["run_id"] != self._mlflow_run]
            tasks = {tag["value"] for each in others for tag in each["data"]["tags"] if tag["key"] == "orch.task"}
        except FAILURES as error:
            return [f"warning: --mlflow: {self._server} {odd}: {_describe(error)}"]
        what = f"warning: {group_tasks(sorted(tasks))} logged to MLflow runs of their own, not to {self._mlflow_run}"
        return [what, "fix: call MLflow only where worker.context().is_chief"] if tasks else []

    def add(self, orders: StartTasks) -> StartTasks:
        """The orders with the variables of the trackers."""
        return replace(orders, orders=tuple(replace(order, env_defaults=self._variables(order)) for order in orders.orders))

    def _variables(self, order: TaskOrder) -> dict[str, str]:
        is_chief, found = order.env.get("ORCH_IS_CHIEF") == "1", dict[str, str]()
        if self._spec.wandb:
            found |= {"WANDB_RUN_ID": self._run.run_id, "WANDB_RESUME": "allow"} if is_chief else {"WANDB_MODE": "disabled"}
        if self._mlflow_run:
            context = json.dumps({"orch.run": self._run.run_id, "orch.task": order.task})
            found |= {"MLFLOW_TRACKING_URI": self._uri, "MLFLOW_RUN_CONTEXT": context}
            found |= {"MLFLOW_RUN_ID": self._mlflow_run} if is_chief else {}
        return found

    def _experiment(self) -> str:
        """The id of the experiment that the user's variables name, which is made if there is none of this name."""
        name = self._env.get("MLFLOW_EXPERIMENT_NAME", "")
        if not name:
            return self._env.get("MLFLOW_EXPERIMENT_ID", "0")
        with suppress(OSError):  # 404
            return str(self._ask(f"experiments/get-by-name?experiment_name={quote(name)}")["experiment"]["experiment_id"])
        return str(self._ask("experiments/create", {"name": name})["experiment_id"])

    def _ask(self, what: str, data: dict[str, Any] | None = None) -> Any:
        token, user, word = (self._env.get(f"MLFLOW_TRACKING_{name}", "") for name in ("TOKEN", "USERNAME", "PASSWORD"))
        login = f"{user}:{word}" if user else self._login
        proof = f"Bearer {token}" if token else f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
        head = {"Content-Type": "application/json", **({"Authorization": proof} if proof else {})}
        body = None if data is None else json.dumps(data).encode()
        with urlopen(Request(f"{self._server}/api/2.0/mlflow/{what}", body, head), timeout=ANSWER_S) as answer:
            return json.load(answer)


def _describe(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error or type(error).__name__)
