"""Stages of ``flatline preflight``: each runs the script once more in a process of its own, with its loop steered from outside.

Nothing here is ever undone: the process ends with its stage.
"""
