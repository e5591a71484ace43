"""Rules about the job model: which container runs which task, and which task reads which partition.

* `graph`: the stages of a job and the streams between them; `spec`: a run, which is that graph with its streams and its containers
* `grouping`: partitions to tasks; `placement`: tasks to slots; `model`: both together, the job model
* `expansion`: what a running run does when its streams grow or its number of slots changes
"""
