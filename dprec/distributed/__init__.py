"""The processes of one run: torch.distributed starts and connects them, and nothing here does.

first       whether a process is the first, before the processes are connected
ranks       what they tell each other: sums, rows, a step's secret key, whether they are the same
replicas    what Lightning's strategy for several processes may do, and what it must leave to `privacy/private_gradient`
ending      after which step all end at SIGTERM, how each leaves, and one line for an error, whichever has it
"""
