"""The one line that a help text shows of each option of `orch up`, and the settings that have no option there."""

from __future__ import annotations

LINES = {
    "--no-python": "Run a program that is not Python",
    "--module": "Run a Python module, as python -m does",
    "--python": "Python of the tasks [default: that of orch]",
    "--name": "Name of the run [default: that of the script]",
    "--file": "Settings [default: orch.yaml, if it exists]",
    "--set": "Set any key of orch.yaml; repeatable",
    "--env": "Set or copy a variable of the tasks; repeatable",
    "--prepare": "Command to run once on each host, first",
    "--keras": "auto, v3, legacy or off [default: auto]",
    "--workers": "Workers, or MIN:MAX [default: 1, or all slots]",
    "--ps": "Parameter servers [default: 0]",
    "--evaluator": "A task that evaluates checkpoints [default: no]",
    "--strategy": "Strategy of tf.distribute [default: by tasks]",
    "--tpu": "TPU: local, a name, grpc://HOST:8470 or auto",
    "--gpus": "GPUs of a task: auto, N, list [default: auto]",
    "--gpu-memory": "Limit on each GPU: MB, or 4G [default: all]",
    "--memory-growth": "Take GPU memory as needed [default: no]",
    "--cpus": "Logical CPU devices, not cores [default: 1]",
    "--threads": "Compute threads [default: cores / tasks]",
    "--log-placement": "Log devices, for orch placement [default: no]",
    "--auto-shard": "auto, file, data, hint, off [default: script's]",
    "--global-batch-size": "Elements in one step of worker.distribute",
    "--max-restarts": "Restarts after failures [default: 0]",
    "--timeout": "Limit of the whole run: 2h30m [default: none]",
    "--hang-timeout": "Fail if all are silent for TIME [default: none]",
    "--fail-on-nan": "Fail if a task reports NaN, inf [default: no]",
    "--checkpoint": "Save Keras's fit, and resume it [default: no]",
    "--resume": "Continue RUN, latest, or a checkpoint directory",
    "--backend": "local, ssh, slurm, kubernetes [default: found]",
    "--hosts": "ssh: hosts with their slots; repeatable",
    "--hostfile": "ssh: file with lines HOST slots=N",
    "--join": "This command runs on each node [default: no]",
    "--nodes": "Slurm, --join: nodes [default: those of the job]",
    "--image": "Kubernetes: image with Python and TensorFlow",
    "--time": "Slurm: time limit, 2:00:00 [default: Slurm's]",
    "--network": "host; private: own ports closed [default: host]",
    "--tensorboard": "Run TensorBoard for this directory",
    "--home": "Directory of all runs [default: .orch]",
    "--detach": "Run in the background; then: orch logs -f",
    "--dry-run": "Print commands and TF_CONFIG; start nothing",
    "--only": "Show only the output of TASK; repeatable",
    "--quiet": "Show only the result, no output of the tasks",
    "--color": "auto, always or never [default: auto]",
    "--all": "Also show TensorFlow's messages and all bars",
    "--json": "Print JSON",
}
"""By the long name; docs/reference.md has the whole description. The others show their description."""
METAVARS = {
    "--auto-shard": "POLICY",
    "--keras": "KERAS",
    "--network": "NAME",
    "--backend": "NAME",
    "--color": "WHEN",
    "--hosts": "HOST:N,…",
    "--tpu": "TPU",
}
"""Shorter words for values, where the line has the choices."""
SETTINGS_ALONE = frozenset(
    {
        *("--account", "--affinity", "--checkpoint-every", "--computation-shape", "--context", "--data-workers"),
        *("--determinism", "--fallback", "--inter-threads", "--keras-exact"),
        *("--logical-gpus", "--namespace", "--num-replicas", "--pods", "--ports", "--prepare-timeout", "--save-before", "--serve"),
        *("--share-gpus", "--tf32", "--topology", "--workdir", "--xla"),
    }
)
"""Settings without an option: a user writes ``--set KEY=VALUE``, a variable or a key. A command about these keys has the option."""
OF_JOIN = ("--join-at", "--join-dir", "--node-index", "--requeue-code")
RARE = (
    *("--chief", "--grace", "--log-level", "--metrics-dir", "--mlflow", "--notify", "--soft-placement", "--start-timeout"),
    *("--timestamps", "--wandb"),
)
IN_ONE_LINE = frozenset({*OF_JOIN, *RARE})
"""Options that the help has in its last lines: docs/join.md and docs/commands.md explain them."""
