"""Runs whose controller is in the cluster (`orch up -d`): nothing on the submitting machine is needed while they go on.

the submitting machine                the pod of the controller                     the pods of the tasks
kubectl create (engine, objects,  →   start_program → orchestrator.controller   ←   dialler: dials, with the token
packed_files)                         with inside and listener
kubectl exec: requests, the mirror →  keeper_program
"""
