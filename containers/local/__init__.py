"""Running on one machine: `sluice run` starts a coordinator and containers as supervised processes, and `sluice kafka up` a Kafka broker
for development.
"""
