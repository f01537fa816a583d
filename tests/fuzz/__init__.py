"""Fuzzing: every public callable is called with odd arguments, and must answer or say why not.

    python -m tests.fuzz                        the short version, as the suite runs it
    python -m tests.fuzz --long --report FILE   thousands of calls; FILE.md and FILE.json
    python -m tests.fuzz --long --seed 1        thousands of others
    python -m tests.fuzz --case "fl.tasks.hierarchy(levels=2.5)"     one call, with its traceback

A case is written as a call in which the arguments that are not named have valid values: `words`
says which, by the parameter's name. `names` collects the callables, `kinds` knows what is certainly
bad for an argument, `cases` draws the calls by hypothesis from fixed seeds, `drive` runs them in
child processes that may hang or die, `outcome` judges, `report` counts.
"""
