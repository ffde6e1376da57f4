"""Saves on order: before something ends an attempt, its trainings save themselves. Pure.

`reasons` says what orders a save: each reason is a function there, which `lifecycle.step` calls for an event or a deadline. `order` is the
save itself: who can, what each training is told, and what each says. `results` says how the attempt ends after the save. While the save
goes on, it is `Cluster.saving`, and `deadlines` has its limits.
"""
