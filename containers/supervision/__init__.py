"""What ends a container's processes, and cleans up after them, whatever has happened to its agent.

* `guardian` is a process beside the agent, which ends the driver if the agent was killed or is stopped. `guardian_process` starts it.
* `processes` reads the process table and ends processes.
* `exit_report` reports the exit to the coordinator, also in place of an agent that may not run any longer.
* `scratch` has the temporary directories of containers on this machine.

The driver and all its descendants are ended, also those that left its session or whose parent has ended. They are found in three ways: the
agent is the subreaper of its descendants (prctl(2)), so that a process whose parent ends becomes its child; the guardian records the
descendants that it finds, by pid and start time; and all of them inherit an environment variable with the id of the container.
"""
