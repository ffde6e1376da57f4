"""The program that a pod waits with: it holds the container open for agents, and ends it soon after the last agent has gone.

The program is sent as text in the pod's command, so it is short and uses any Python 3. As the first process of the container it reaps what
others leave. An agent that `kubectl exec` starts has the parent 0 in the container's own numbering of processes.
"""

from __future__ import annotations

from worker.machine.clock import patience

BEFORE_S = patience(900.0)
"""How long a pod waits for its first agent. A controller that waits for other pods asks for the same time again (`RENEW`)."""
AFTER_S = patience(60.0)
"""How long a pod stays without an agent after there was one: a controller that goes on has its agents all the time."""
RENEW_S = patience(300.0)
AGENT = "FileIO"
"""A word in the command of every agent (`connection.boot.BOOT`)."""
HOLDER = f"""\
import os,signal,sys,time
signal.signal(signal.SIGCHLD,signal.SIG_IGN)
before,after=map(float,sys.argv[1:])
def read(pid,name):
 try:
  with open("/proc/%s/%s"%(pid,name),"rb") as f:return f.read()
 except OSError:return b""
def others():
 return [p for p in os.listdir("/proc") if p.isdigit() and int(p)!=os.getpid()]
def end(*_):
 for pid in others():
  if read(pid,"stat").rpartition(b")")[2].split()[1:2]==[b"0"]:
   try:os.kill(int(pid),signal.SIGTERM)
   except OSError:pass
 while others():time.sleep(.05)
 os._exit(143)
def renew(*_):
 global limit
 limit=max(limit,time.monotonic()+before)
signal.signal(signal.SIGTERM,end)
signal.signal(signal.SIGUSR1,renew)
limit=0
renew()
while time.monotonic()<limit:
 time.sleep(min(2,after))
 if any(b"{AGENT}" in read(pid,"cmdline") for pid in others()):limit=time.monotonic()+after
"""
RENEW = "import os,signal;os.kill(1,signal.SIGUSR1)"


def holder_argv(python: str, before_s: float = BEFORE_S, after_s: float = AFTER_S) -> tuple[str, ...]:
    """The command of a pod. On SIGTERM it hands the signal to the agents, and ends with 143 when no other process is left.

    With 0, a pod that its kubelet evicts would have succeeded, and Kubernetes would keep no reason.
    """
    return (python, "-I", "-c", HOLDER, f"{before_s:g}", f"{after_s:g}")
